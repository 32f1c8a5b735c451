"""The schema's revisions, numbered, forward only; the tables of today are `tables.py`."""

REVISIONS = ("0001",)
"""All revisions this software knows, oldest first; `versions/` has a file for each."""
