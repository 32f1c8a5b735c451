"""What the writer remembers of the rollouts it is writing, so that a turn costs its new part only.

For each rollout a few conversations (raw messages with the names of their rows) and a few token
paths. All of it can be forgotten at any time: what is not here is hashed or read again. Used by
the writer's thread alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from .ids import CallId, RolloutId
from .tokens import Path, common_ids

_WAYS = 4
_KNOWN = 1 << 16


@dataclass(frozen=True, slots=True)
class Chain:
    """A conversation: each message's raw bytes, the name of its row, and where secrets begin."""

    messages: tuple[bytes, ...] = ()
    nodes: tuple[bytes, ...] = ()
    first_secret: int | None = None
    digested: int = 0
    """How many leading rows are known to have their canonical digest."""


@dataclass(slots=True)
class _Rollout:
    chains: list[Chain] = field(default_factory=list[Chain])
    paths: OrderedDict[CallId, Path] = field(default_factory=OrderedDict[CallId, Path])
    size: int = 0

    def measure(self) -> int:
        text = max((sum(map(len, c.messages)) for c in self.chains), default=0)
        nodes = sum(24 * len(c.nodes) for c in self.chains)
        return text + nodes + sum(len(p.full) for p in self.paths.values())


class Recent:
    """A bounded memory, by bytes; the rollout that was quiet longest is forgotten first."""

    def __init__(self, limit_bytes: int) -> None:
        """Keep up to so many bytes."""
        self._limit = limit_bytes
        self._size = 0
        self._rollouts: OrderedDict[RolloutId, _Rollout] = OrderedDict()
        self._known: OrderedDict[bytes, None] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """About how many bytes are held."""
        return self._size

    def longest_chain(
        self, rollout_id: RolloutId, messages: tuple[bytes, ...]
    ) -> tuple[Chain, int]:
        """Return the chain that shares most leading messages with these, and how many."""
        best, most = Chain(), 0
        known = self._rollouts.get(rollout_id)
        for chain in known.chains if known else ():
            n = _shared(chain.messages, messages)
            if n > most:
                best, most = chain, n
        return best, most

    def keep_chain(self, rollout_id: RolloutId, chain: Chain) -> None:
        """Remember a conversation; it takes the place of the one that it continues."""
        entry = self._touch(rollout_id)
        for i, old in enumerate(entry.chains):
            if old.nodes == chain.nodes[: len(old.nodes)]:
                del entry.chains[i]
                break
        entry.chains.append(chain)
        del entry.chains[:-_WAYS]
        self._settle(rollout_id, entry)

    def path(self, rollout_id: RolloutId, call_id: CallId) -> Path | None:
        """Return a call's token path, where remembered."""
        known = self._rollouts.get(rollout_id)
        return known.paths.get(call_id) if known else None

    def nearest_path(self, rollout_id: RolloutId, prompt: bytes) -> Path | None:
        """Return the path that shares most leading ids with a prompt, if any does."""
        known = self._rollouts.get(rollout_id)
        paths = known.paths.values() if known else ()
        return max(paths, key=lambda path: common_ids(prompt, path.full), default=None)

    def keep_path(self, rollout_id: RolloutId, call_id: CallId, path: Path) -> None:
        """Remember a call's token path."""
        entry = self._touch(rollout_id)
        entry.paths[call_id] = path
        while len(entry.paths) > _WAYS:
            entry.paths.popitem(last=False)
        self._settle(rollout_id, entry)

    def forget(self, rollout_id: RolloutId) -> None:
        """Let go of a rollout: it is closed."""
        entry = self._rollouts.pop(rollout_id, None)
        if entry:
            self._size -= entry.size

    def is_known(self, name: bytes) -> bool:
        """Return whether a content-named row is certainly in the database."""
        if name in self._known:
            self._known.move_to_end(name)
            return True
        return False

    def know(self, name: bytes) -> None:
        """Remember that a content-named row is committed."""
        self._known[name] = None
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    def _touch(self, rollout_id: RolloutId) -> _Rollout:
        entry = self._rollouts.setdefault(rollout_id, _Rollout())
        self._rollouts.move_to_end(rollout_id)
        return entry

    def _settle(self, rollout_id: RolloutId, entry: _Rollout) -> None:
        size = entry.measure()
        self._size += size - entry.size
        entry.size = size
        while self._size > self._limit and self._rollouts:
            oldest = next(iter(self._rollouts))
            self.forget(oldest)


def _shared(a: tuple[bytes, ...], b: tuple[bytes, ...]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x is not y and x != y:
            break
        n += 1
    return n


ReadPath = Callable[[CallId], Path | None]
