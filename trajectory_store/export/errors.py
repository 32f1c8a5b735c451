"""What an export raises.

StoreError
└── ExportError    the file cannot be written as asked; nothing of it is left behind
    └── MissingExtra   a package is needed that an extra brings
"""

from ..errors import StoreError


class ExportError(StoreError):
    """The export cannot be made as asked; the message says what to do."""


class MissingExtra(ExportError, ImportError):
    """A format needs a package that is not installed; the message names the extra."""
