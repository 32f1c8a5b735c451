"""The recording proxy: serves a harness, asks an engine, and keeps every call exactly.

It may use `budwood.trajectory_store`.
It never knows the names of harnesses, tasks or trainers.
"""

from .errors import ConfigurationError, NotIdentified, ProxyError, Refused
from .server import RunningProxy, running_proxy, serve
from .settings import ProxySettings, SamplingPolicy

__all__ = [
    "ConfigurationError",
    "NotIdentified",
    "ProxyError",
    "ProxySettings",
    "Refused",
    "RunningProxy",
    "SamplingPolicy",
    "running_proxy",
    "serve",
]
