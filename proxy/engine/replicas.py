"""Which replica a call goes to, and when it is tried again.

A lane stays with one replica, whose prefix cache holds its history: replicas are ordered by a hash
of lane and URL (rendezvous hashing), so that one that comes or goes moves only its own lanes. A
replica that could not be reached is passed over for a while; when all are down, all are tried.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from .errors import EngineChanged, EngineError, EngineRefused, EngineUnreachable
from .settings import EngineSettings

RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504, 529})


@dataclass(slots=True)
class Replica:
    """One server and what we know of its health."""

    url: str
    down_until: float = 0.0
    is_proved: bool = False
    """Whether it is known what it is: false again once it was gone, since another may come back."""
    proving: asyncio.Lock = field(default_factory=asyncio.Lock)


class Replicas:
    """All servers of one engine."""

    def __init__(
        self, settings: EngineSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.all = [Replica(url) for url in settings.urls]
        self._unhealthy_s = settings.unhealthy_s
        self._clock = clock

    def ordered(self, lane_id: str) -> list[Replica]:
        """Return the replicas in the order in which a lane wants them; those down come last."""
        if len(self.all) == 1:
            return self.all
        now = self._clock()
        return sorted(
            self.all, key=lambda replica: (replica.down_until > now, _key(replica, lane_id))
        )

    def mark_down(self, replica: Replica) -> None:
        """Pass over a replica for a while, and take it for unknown."""
        replica.is_proved = False
        replica.down_until = self._clock() + self._unhealthy_s

    def mark_up(self, replica: Replica) -> None:
        """Use a replica again."""
        replica.down_until = 0.0


def _key(replica: Replica, lane_id: str) -> bytes:
    return blake2b(f"{lane_id}\0{replica.url}".encode(), digest_size=8).digest()


def pauses(settings: EngineSettings, rng: random.Random) -> Iterator[float]:
    """Yield the pause before each further try: full jitter under a bound that doubles."""
    bound = settings.backoff_min_s
    for _ in range(settings.tries - 1):
        yield rng.uniform(0, min(bound, settings.backoff_max_s))
        bound *= 2


def is_retried(error: EngineError) -> bool:
    """Whether the same call may succeed when it is sent again."""
    if isinstance(error, EngineRefused):
        return error.status in RETRIED
    return isinstance(error, EngineUnreachable) and not isinstance(error, EngineChanged)
