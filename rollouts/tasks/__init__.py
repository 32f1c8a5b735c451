"""Tasks in Harbor's format: read, refused by name where they can't be run, graded, checked.

It may use the store's words for outcomes; a place to run in is handed to it (`place.py`).
It never knows sandboxes, harnesses or the proxy.
"""

from __future__ import annotations

from .checking import CheckReport, OpenPlace, Trial, check, check_all
from .config import Split, TaskConfig
from .folder import Task, load_task
from .grading import Grade, grade
from .place import ExecResult, Place, prepare
from .support import require_runnable, unsupported
from .template import Variant, is_template, load_tasks, read_variants, render
from .variables import fill
from .verdict import Evidence, Verdict, judge

__all__ = [
    "CheckReport",
    "Evidence",
    "ExecResult",
    "Grade",
    "OpenPlace",
    "Place",
    "Split",
    "Task",
    "TaskConfig",
    "Trial",
    "Variant",
    "Verdict",
    "check",
    "check_all",
    "fill",
    "grade",
    "is_template",
    "judge",
    "load_task",
    "load_tasks",
    "prepare",
    "read_variants",
    "render",
    "require_runnable",
    "unsupported",
]
