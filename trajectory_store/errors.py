"""What the store raises.

StoreError
├── StoreBusy      the database was locked or unreachable for `busy_s`; asking again may work
├── StoreFull      no space, quota spent, or not writable; works again once that is healed
├── StoreCorrupt   stored bytes do not match their checksum, length or type
├── StoreGone      the database's file was deleted, moved or replaced while it was open
├── StoreClosed    the store was closed before the record was durable
├── SchemaTooNew   the file was written by a later version of this software
├── NotStored      no record has this id
├── NotWritten     the database refused this one record (a second finish, an unknown rollout)
└── SelectorError  the selector names nothing, or more than one thing, or cannot be read
"""

from __future__ import annotations


class StoreError(Exception):
    """Anything the store could not do; the base of the tree above."""


class StoreBusy(StoreError, TimeoutError):
    """The database stayed locked or unreachable for longer than `busy_s`."""


class StoreFull(StoreError, OSError):
    """The database cannot take more: no space, quota, or read-only."""


class StoreCorrupt(StoreError, ValueError):
    """Stored bytes fail their checksum, length or type; nothing of them is returned."""


class StoreGone(StoreError):
    """The file that is written is no longer the one at its path: what goes into it is lost."""


class StoreClosed(StoreError):
    """The store was closed before this record was durable."""


class SchemaTooNew(StoreError):
    """The database's schema is newer than this software knows."""


class NotStored(StoreError, LookupError):
    """No record has this id."""


class NotWritten(StoreError, ValueError):
    """The database refused this one record; the others of its commit went through."""


class SelectorError(StoreError, ValueError):
    """The selector cannot be read, or finds nothing, or is not unique."""
