"""SIGKILL of the proxy at random moments under load: what was acknowledged must be in the store.

    python -m bench.kill --kills 50 [--db postgres] [--acknowledged 2000]

Streaming and plain clients hold growing conversations with the scripted engine through the proxy
and, like an SDK, send a call again when its answer broke off. The proxy is killed at a random
moment (every second time at a chosen step of a random call, since some steps last microseconds) and
started again on the same store; in the end the store is checked. Prints a histogram of the step
(`budwood/proxy/recording/steps.py`) that calls in flight had reached when the kill came. Exit 1 if
an acknowledged call is lost or differs from what the engine sent, if a client was told anything
else, or if a call that no client was told of is trained.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from budwood.proxy.recording.steps import Step
from budwood.trajectory_store import Store

from .acknowledged import Acknowledged, Verdict, verify
from .answers import Ask, chat_body, differences, filler, http_request, read_answer
from .closed_loop import FAILURES
from .connection import connect
from .servers import Server, free_port, open_rollout, scratch_folder, scripted_engine, start

TURNS_A_CONVERSATION = 10
ADMIN_SECRET = "bench-admin-secret-of-this-run-only"


@dataclass(slots=True)
class Trial:
    """Everything that outlives a kill."""

    engine: Server
    store_url: str
    folder: Path
    port: int
    admin_port: int
    told: list[Acknowledged] = field(default_factory=list[Acknowledged])
    wrong: list[str] = field(default_factory=list[str])
    """Answers that came whole and are not what the engine sent."""
    rollouts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Id and secret."""
    seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    hit: Counter[str] = field(default_factory=Counter[str])
    aimed: Counter[str] = field(default_factory=Counter[str])
    kills_in_flight: int = 0
    steps_read: int = 0

    @property
    def base(self) -> str:
        """Where clients call."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def steps(self) -> Path:
        """Where the proxy writes its steps."""
        return self.folder / "steps"

    def start_proxy(self, *, die_at: int = 0, die_after: int = 1) -> Server:
        """Start the proxy on the trial's store and ports; it can kill itself at a step."""
        command = [
            sys.executable, "-m", "bench.traced_proxy", "--engine", self.engine.url,
            "--store", self.store_url, "--steps", str(self.steps), "--port", str(self.port),
            "--admin-port", str(self.admin_port), "--admin-secret", ADMIN_SECRET,
            "--die-at", str(die_at), "--die-after", str(die_after),
        ]  # fmt: skip
        url = f"http://127.0.0.1:{self.port}"
        server = start(command, url, self.folder / "proxy.log", patience_s=60)
        server.admin_url, server.admin_secret = f"http://127.0.0.1:{self.admin_port}", ADMIN_SECRET
        return server

    def read_hits(self, aim: int) -> None:
        """Note which step each call had reached that was in flight at the kill."""
        lines = self.steps.read_text().splitlines()
        last: dict[str, int] = {}
        for line in lines[self.steps_read :]:
            call_id, step = line.split()
            last[call_id] = int(step)
        self.steps_read = len(lines)
        cut = [Step(step).name for step in last.values() if step != Step.DELIVERED]
        self.hit.update(cut)
        if aim:
            self.aimed[Step(aim).name] += 1
        self.kills_in_flight += bool(cut)


class Talker:
    """One harness: a conversation at a time, the same call again when its answer broke off."""

    def __init__(self, trial: Trial, number: int, rollout: tuple[str, str]) -> None:
        self._trial = trial
        self._number = number
        self._rollout_id, self._key = rollout
        self._messages: list[dict[str, Any]] = []
        self._ask = Ask()
        self._seed = 0
        self._is_retry = False
        self._next_turn(None)

    def _next_turn(self, said: str | None) -> None:
        chance = random.Random(next(self._trial.seeds))
        self._is_retry = False
        self._seed = next(self._trial.seeds)
        stream = chance.random() < 0.7
        self._ask = Ask(
            stream=stream,
            chunks=chance.choice([8, 24, 60]),
            delay_ms=chance.choice([0, 0, 2]) if stream else 0,
            first_ms=chance.choice([0, 5]),
            asks_ids=chance.random() < 0.5,
        )
        if said is None or len(self._messages) > 2 * TURNS_A_CONVERSATION:
            self._messages = [{"role": "system", "content": f"Agent {self._number}."}]
        else:
            self._messages.append({"role": "assistant", "content": said})
        text = f"{filler(300, self._seed)} {self._ask.marker(self._seed)}"
        self._messages.append({"role": "user", "content": text})

    async def talk(self) -> None:
        """Call until the proxy is gone."""
        connection = await connect(self._trial.base)
        try:
            while True:
                await self._call(connection)
        except FAILURES:
            self._is_retry = True
        finally:
            connection.abort()

    async def _call(self, connection: Any) -> None:
        body = chat_body(self._ask, self._messages)
        headers = ("x-stainless-retry-count: 1",) if self._is_retry else ()
        async with asyncio.timeout(20):
            await connection.send(http_request(self._trial.base, self._key, body, headers))
        answer = bytes(connection.body)
        wrong = differences(self._ask, self._seed, connection.status, answer)
        if wrong and connection.status == 200:
            self._trial.wrong.append(f"seed {self._seed}: {wrong}")
        if wrong:
            raise OSError(f"{connection.status} {wrong} {answer[:300]!r}")
        told = Acknowledged(self._rollout_id, self._seed, self._ask.chunks, body)
        self._trial.told.append(told)
        self._next_turn(read_answer(answer, stream=self._ask.stream).text)


async def until_killed(trial: Trial, talkers: list[Talker], proxy: Server, after_s: float) -> None:
    """Let the clients talk; kill the proxy after so many seconds."""
    talks = [asyncio.ensure_future(talker.talk()) for talker in talkers]
    end = time.monotonic() + after_s
    # Nobody tells of another process's end: it is asked for.
    while time.monotonic() < end and proxy.process.poll() is None:  # noqa: ASYNC110
        await asyncio.sleep(min(0.02, after_s))
    proxy.process.kill()
    await asyncio.gather(*talks)
    proxy.process.wait()


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """Yield the URL of an empty database."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'store.db'}"
        return
    from budwood.trajectory_store.testing.postgres import running_postgres

    with running_postgres() as server:
        yield server.database()


def run(trial: Trial, *, kills: int, acknowledged: int, clients: int, seed: int) -> Verdict:
    """Kill until both numbers are reached; return the last verdict."""
    chance = random.Random(seed)
    talkers: list[Talker] = []
    n_kills = 0
    longest_s = 1.2
    while n_kills < kills or len(trial.told) < acknowledged:
        aim = n_kills // 2 % len(Step) + 1 if n_kills % 2 else 0
        proxy = trial.start_proxy(die_at=aim, die_after=chance.randint(1, 60))
        if not talkers:
            trial.rollouts = [open_rollout(proxy, "kill") for _ in range(clients)]
            talkers = [Talker(trial, i, each) for i, each in enumerate(trial.rollouts)]
        before = len(trial.told)
        after_s = 10.0 if aim else chance.uniform(0.02, longest_s)
        asyncio.run(until_killed(trial, talkers, proxy, after_s))
        n_kills += 1
        trial.read_hits(aim)
        need = (acknowledged - len(trial.told)) / max(1, kills - n_kills)
        longest_s = min(8.0, longest_s * (1.3 if need > len(trial.told) - before else 1.0))
        if n_kills % 10 == 0:
            print(f"{n_kills} kills, {len(trial.told)} acknowledged", flush=True)
    # Once more, so that what the last kill left is swept as a restart sweeps it.
    trial.start_proxy().stop()
    with Store.open(trial.store_url, read_only=True) as store:
        return verify(store, trial.told, [rollout_id for rollout_id, _ in trial.rollouts])


def report(trial: Trial, verdict: Verdict, kills: int, took_s: float) -> None:
    """Print what came of it."""
    print(f"\n{kills} kills, {trial.kills_in_flight} with calls in flight, in {took_s:.0f} s")
    print("step that calls in flight had reached:")
    for step in Step:
        n = trial.hit[step.name]
        aimed = f"kills aimed here {trial.aimed[step.name]:>3}"
        print(f"  {int(step)} {step.name.lower():<14} {n:>5}   {aimed}  {'#' * min(50, n)}")
    print(f"states in the store: {dict(verdict.states)}")
    untold = verdict.n_acknowledged - verdict.n_trained
    print(
        f"acknowledged {verdict.n_acknowledged}, trained {verdict.n_trained}"
        f" ({untold} whose delivery mark died with the process are kept, and not trained)"
    )
    print(f"wrong answers {len(trial.wrong)} {trial.wrong[:5]}")
    print(f"lost {len(verdict.lost)} {verdict.lost[:5]}")
    print(f"differing {len(verdict.differing)} {verdict.differing[:5]}")
    strange = verdict.trained_unacknowledged
    print(f"trained without having been acknowledged {len(strange)} {strange[:5]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trial; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--acknowledged", type=int, default=2000, help="at least so many calls")
    parser.add_argument("--db", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    started = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        url = stack.enter_context(database(options.db, folder))
        engine = stack.enter_context(scripted_engine(folder))
        trial = Trial(engine, url, folder, free_port(), free_port())
        verdict = run(
            trial,
            kills=options.kills,
            acknowledged=options.acknowledged,
            clients=options.clients,
            seed=options.seed,
        )
        report(trial, verdict, options.kills, time.monotonic() - started)
    return 0 if verdict.is_good and not trial.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
