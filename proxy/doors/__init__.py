"""The doors: HTTP requests of harnesses in, answers out.

    connection ──▶ routes ──▶ chat ──▶ recording
                     │          └─ body, retry
                     └─▶ models, probes, what is not there yet

A door knows its dialect and HTTP; which tokens a call gets and when it is durable, it never knows.
"""

from .routes import Doors

__all__ = ["Doors"]
