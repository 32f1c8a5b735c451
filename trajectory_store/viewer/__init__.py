"""The viewer: recorded trajectories as pages, read-only, for one reader at this machine.

Every page is made on the server; there is no script, and the policy sent with each page lets none
run, since what a model wrote is hostile. What opens the viewer is a random token (`access.py`).
"""

from .access import Access, ViewerError
from .app import create_app, serve

__all__ = ["Access", "ViewerError", "create_app", "serve"]
