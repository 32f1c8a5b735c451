"""What can go wrong before a harness starts.

HarnessError
├── UnknownHarness   (also a ValueError) a name that no adapter has
├── NotLaunched      (also a ValueError) a harness that is only pointed, never launched by us
├── NotInstalled     (also a FileNotFoundError) a harness that is not on this machine
└── InstallFailed    an installation that did not come about
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


class NotLaunched(HarnessError, ValueError):
    """A harness that has no launch: `budwood record` can point it, nothing here can start it."""

    def __init__(self, name: str) -> None:
        """Name the one wanted."""
        super().__init__(
            f"{name} can be recorded (`budwood record`), but not launched in a sandbox; "
            "`budwood harness list` says which can"
        )
        self.name = name

    def __reduce__(self) -> tuple[type, tuple[str]]:
        """Pickle by what it was made of."""
        return type(self), (self.name,)


class NotInstalled(HarnessError, FileNotFoundError):
    """A harness that is not on this machine; the message says what was looked at and what to do."""

    def __init__(self, name: str, found: str) -> None:
        """Name the harness, and what was found instead of it."""
        super().__init__(
            f"{name} is not installed: {found}. `budwood harness install {name}` installs it, in a "
            "checkout `make harnesses` does"
        )
        self.name = name
        self.found = found

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Pickle by what it was made of."""
        return type(self), (self.name, self.found)


class InstallFailed(HarnessError):
    """An installation that did not come about; the message says which step and what to do."""
