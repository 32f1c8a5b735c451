"""What can go wrong before a harness starts.

HarnessError
└── UnknownHarness   (also a ValueError) a name that no adapter has
"""


class HarnessError(Exception):
    """Base of this room's errors."""


class UnknownHarness(HarnessError, ValueError):
    """A harness name that no adapter has; the message lists those there are."""

    def __init__(self, name: str, known: list[str]) -> None:
        """Name the one wanted and those there are."""
        super().__init__(f"no harness {name!r}; there are {', '.join(known)}")
        self.name = name
        self.known = known

    def __reduce__(self) -> tuple[type, tuple[str, list[str]]]:
        """Pickle by what it was made of."""
        return type(self), (self.name, self.known)
