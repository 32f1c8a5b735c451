"""How a harness is launched by us, headless, inside a sandbox: plain values, no effects.

A launch comes on top of the pointing: the adapter says where the endpoint is and which files say
so, the launch says which words, input and files start one attempt at one task, and what its end
means. A runner applies a `Prepared` in this order: make a sandbox with the installation's binds,
write `files` below the private home (each mode 0600), start `argv` with `stdin` and `env` in the
working directory, keep the `artifacts`, and give what is left to `Launch.parse`.

No word of `argv` goes through a shell, and none holds the secret or the instruction: a process
list shows the one to whoever looks, and the kernel refuses a word of 128 KiB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from .installation import Installation, Program
from .pointing import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """One attempt at one task, as a harness has to know it. Paths are those inside the sandbox."""

    instruction: str
    workdir: str
    home: str
    """The private home of the run: an absolute path below which only we and the harness write."""
    endpoint: Endpoint
    max_turns: int | None
    """Most model calls; None is no limit. Who holds it is `Launch.turn_limit`."""
    timeout_s: float
    """When the runner will end it; a harness gets it where it would cut long answers itself."""


class TurnLimit(StrEnum):
    """Who holds `max_turns`."""

    NATIVE = "native"
    """The harness."""
    PROXY = "proxy"
    """It can't: the rollout's budget `max_calls` must."""


class Status(StrEnum):
    """What a harness says of its own end. What the attempt was worth is the verifier's to say."""

    DONE = "done"
    """It stopped because it takes the task for done, or gave the model up for good."""
    FAILED = "failed"
    """It broke off: a model call failed, or the harness itself did."""
    LIMIT = "limit"
    """It ran into its own limit of turns or time."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a harness counted; the proxy's record is what counts."""

    n_calls: int | None = None
    n_prompt_tokens: int | None = None
    n_sampled_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class HarnessResult:
    """How one launch ended, by the harness's own account."""

    status: Status
    final_text: str = ""
    """What it said last, or submitted."""
    usage: Usage | None = None
    why: str = ""
    """Its own word for the end, or what was found instead of an account. One line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What is left of a process that has ended."""

    exit_code: int | None
    """None where a signal ended it."""
    stdout: bytes
    stderr: bytes
    """Both may lack their middle."""
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    """Path below the private home → content, of the files that `Launch.artifacts` names."""

    def last_words(self) -> str:
        """Return the last line of stderr, else of stdout, for people."""
        for stream in (self.stderr, self.stdout):
            lines = stream.decode("utf-8", "replace").strip().splitlines()
            if lines:
                return lines[-1].strip()[:500]
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What to start: the pointing and the launch as one."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """On top of the sandbox's own variables."""
    files: Mapping[str, str]
    """Path below the private home → text. They may hold the secret: mode 0600."""
    stdin: bytes | None


def no_files(ctx: LaunchContext) -> Mapping[str, str]:
    """Return none: the pointing's are enough."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How one harness is launched, limited, and how its end is read."""

    program: Program
    """What has to be installed, and is bound into the sandbox."""
    pinned_version: str
    """The version that `budwood harness install` puts in place: the one of the committed lock."""
    arguments: Callable[[LaunchContext, Installation], tuple[str, ...]]
    """The words after the program's own."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """On top of the adapter's; templates as there."""
    files: Callable[[LaunchContext], Mapping[str, str]] = no_files
    """On top of the adapter's: path below the private home → text."""
    stdin: Callable[[LaunchContext], bytes] | None = None
    turn_limit: TurnLimit
    account: Callable[[Ended], HarnessResult | None]
    """Reads how it ended; None: it left no account. May raise what reading odd data raises."""
    artifacts: tuple[str, ...] = ()
    """Patterns of paths below the private home, as `fnmatch` reads them, so that `*` goes past a
    slash: its own logs, which `account` reads. Their content may hold the secret."""
    version_arguments: tuple[str, ...] = ("--version",)
    """What shows that it starts, and its version where it has an option for that."""
    hints: Mapping[str, str] = field(default_factory=dict[str, str])
    """For the proxy, data only: headers that name a thread or its parent."""
    tested_versions: tuple[str, ...] = ()
    known_quirks: tuple[str, ...] = ()
    """What an author of tasks or a runner should know, one line each."""

    def parse(self, ended: Ended) -> HarnessResult:
        """Return how it ended, by its own account; whatever it left, nothing is raised.

        The policy can write what the harness writes: an account that can't be read is a failure.
        """
        try:
            result = self.account(ended)
            if result is not None:
                # JSON can spell half a surrogate pair, which no store takes.
                texts = (result.final_text, result.why)
                final_text, why = (text.encode("utf-8", "replace").decode() for text in texts)
                return replace(result, final_text=final_text, why=why)
        except (
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            ArithmeticError,
            RecursionError,
        ):
            pass
        return HarnessResult(Status.FAILED, why=ended.last_words() or "it left no account")
