"""Runs that are harmed while they go on: each failure by its name, and the figures as undisturbed.

    python -m tests.e2e.rollout_faults [--fault NAME ...] [--task FOLDER ...] [--harness NAME ...]

`budwood run` at temperature 0, once left alone and once for each fault of `FAULTS`, which is done
to real processes (`injuries.py`). Of each harmed run must hold:

* a try ended with the class and a cause that belong to the fault, and was made again;
* every attempt has one outcome that counts, and what its model said in it is, token for token, what
  it said undisturbed; rewards, pass@k, limits and the share of exact calls are the same;
* no process is left, and nothing on disk but what was asked for.

Without `--scripted` a tiny model is taught the tasks and served by real vLLM, which is killed
and started again too. Exits 1 at a fault that is not one of these.
"""

import argparse
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import structlog

from budwood.proxy.testing.real_engine import TinyEngine
from budwood.rollouts.run import Key
from budwood.trajectory_store import FailureClass, Run, Store

from .injuries import (
    a_call_is_open,
    all_below,
    broken_verifiers,
    is_alive,
    kill_a_harness,
    kill_a_sandbox,
    left_of,
    n_of_class,
    until,
)
from .run_command import Place, RunFailed, counted, run_named
from .taught_tasks import CHECKOUT, TASKS, Chosen, add_options, chosen, taught_engine

UNDISTURBED = "undisturbed"
GONE_WITHIN_S = 20.0
"""In which the processes of a run that was killed must have ended."""


class Engine(Protocol):
    """A server that can be killed, and started again at the same address."""

    @property
    def url(self) -> str:
        """Without `/v1`."""
        ...

    def kill(self) -> None:
        """SIGKILL all of its processes."""
        ...

    def start(self) -> None:
        """Start it, and return once it answers."""
        ...


class TaughtVllm:
    """Real vLLM with a model that was taught the tasks."""

    def __init__(self, what: Chosen, stack: ExitStack) -> None:
        self._what = what
        self._stack = stack
        self._running: TinyEngine | None = None

    @property
    def url(self) -> str:
        assert self._running is not None
        return self._running.url

    def kill(self) -> None:
        assert self._running is not None
        os.killpg(self._running.pid, signal.SIGKILL)

    def start(self) -> None:
        port = int(self.url.rpartition(":")[2]) if self._running else 0
        self._running = self._stack.enter_context(taught_engine(self._what, port=port))


class ScriptedProcess:
    """The teacher in a process of its own."""

    def __init__(self, what: Chosen, stack: ExitStack) -> None:
        self._what = what
        self._stack = stack
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        folders = [str(task.folder) for task in self._what.tasks]
        words = [sys.executable, "-m", "tests.e2e.teacher", *folders, "--port", str(self._port)]
        self._process = self._stack.enter_context(
            subprocess.Popen(words, cwd=CHECKOUT, stdin=subprocess.PIPE)
        )
        self._stack.callback(self._process.kill)
        until(lambda: answers(f"{self.url}/health"), "the scripted engine")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(url: str) -> bool:
    """Whether a server answers with 200."""
    try:
        return httpx.get(url, timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False


@dataclass(slots=True)
class Scene:
    """A run that goes on, for a fault to be done to."""

    place: Place
    engine: Engine | None
    words: Sequence[str]
    process: "subprocess.Popen[str]"
    store: Store
    run: Run
    proxy: "OwnProcess | None"

    def until_a_call_is_open(self) -> None:
        """Wait for a harness to wait for its model."""
        until(self._has_call, "a model call of the run")

    def _has_call(self) -> bool:
        if self.process.poll() is not None:
            raise RunFailed("the run ended before it was harmed")
        return a_call_is_open(self.store, self.run)


def _sandbox(scene: Scene) -> None:
    kill_a_sandbox(scene.process.pid)


def _harness(scene: Scene) -> None:
    kill_a_harness(scene.process.pid)


def _verifier(scene: Scene) -> None:
    with broken_verifiers(scene.place.chosen.tasks):
        found = lambda: n_of_class(scene.store, scene.run, FailureClass.VERIFIER) > 0  # noqa: E731
        until(found, "a verifier that failed")


def _engine(scene: Scene) -> None:
    assert scene.engine is not None
    scene.until_a_call_is_open()
    scene.engine.kill()
    # Not before somebody noticed: a harness that asks again at once would not.
    found = lambda: n_of_class(scene.store, scene.run, FailureClass.ENGINE) > 0  # noqa: E731
    until(found, "a try that ended as the engine's failure")
    scene.engine.start()


def _proxy(scene: Scene) -> None:
    assert scene.proxy is not None
    scene.until_a_call_is_open()
    scene.proxy.kill()
    time.sleep(scene.proxy.gone_s)
    scene.proxy.start()


def _runner(scene: Scene) -> None:
    scene.until_a_call_is_open()
    pids = all_below(scene.process.pid)
    scene.process.kill()
    scene.process.communicate()
    until(lambda: not any(map(is_alive, pids)), "the end of the killed run's processes")
    scene.process = scene.place.start(scene.words)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done, and what it must be called."""

    do: Callable[[Scene], None]
    failure_class: FailureClass
    causes: frozenset[str]
    through_own_proxy: bool = False
    """By a proxy that is a process of its own."""


FAULTS = {
    "sandbox killed": Fault(_sandbox, FailureClass.ENVIRONMENT, frozenset({"sandbox_lost"})),
    "harness killed": Fault(_harness, FailureClass.HARNESS, frozenset({"exit_code", "no_calls"})),
    "verifier broken": Fault(_verifier, FailureClass.VERIFIER, frozenset({"verifier_killed"})),
    "engine killed": Fault(_engine, FailureClass.ENGINE, frozenset({"unreachable", "cut"})),
    "proxy killed": Fault(
        _proxy, FailureClass.OURS, frozenset({"crash", "proxy_unreachable"}), through_own_proxy=True
    ),
    "runner killed": Fault(_runner, FailureClass.OURS, frozenset({"interrupted"})),
}


class OwnProcess:
    """`budwood proxy`, which is started again at the same addresses."""

    gone_s = 0.0
    """Longer than a harness's own tries of a call take, so that it gives up."""

    def __init__(self, place: Place, stack: ExitStack) -> None:
        self._place = place
        self._stack = stack
        self._ports = (free_port(), free_port())
        self._secret = secrets.token_urlsafe(16)
        self._process: subprocess.Popen[str] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What the run needs to ask its admin plane."""
        return {"BUDWOOD_PROXY__ADMIN_SECRET": self._secret}

    @property
    def words(self) -> list[str]:
        """The options that send a run through it."""
        harness, admin = self._ports
        return ["--proxy", f"http://127.0.0.1:{harness}", "--admin", f"http://127.0.0.1:{admin}"]

    def kill(self) -> None:
        """SIGKILL it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        """Start it, and return once it and its engine answer."""
        harness, admin = self._ports
        words = [
            sys.executable, "-m", "budwood", "proxy", "--engine", self._place.engine,
            "--store", str(self._place.store), "--port", str(harness), "--admin-port", str(admin),
        ]  # fmt: skip
        self._process = self._place.start(words, **self.environment)
        self._stack.enter_context(self._process)
        self._stack.callback(self._process.terminate)
        until(lambda: answers(f"http://127.0.0.1:{harness}/health"), "the proxy")


@dataclass(slots=True)
class Result:
    """What a run came to."""

    figures: Any
    """All of its report that a fault must not change."""
    said: dict[Key, list[list[int]]]
    """Attempt → the tokens that its model sampled, call by call."""
    failures: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    faults: list[str] = field(default_factory=list)
    took_s: float = 0.0


def result_of(report: dict[str, Any], place: Place, name: str) -> Result:
    """Read what a run came to from its report and the store."""
    faults: list[str] = []
    said: dict[Key, list[list[int]]] = {}
    with Store.open(place.store, read_only=True) as store:
        run = run_named(store, name)
        for key, rollouts in counted(store, run).items():
            if len(rollouts) != 1:
                faults.append(f"{key} counts {len(rollouts)} times")
            said[key] = _said(store, rollouts[-1].id)
        faults += [
            f"{rollout.id} is {rollout.state}, version {store.outcome(rollout.id).version}"
            for rollout in store.rollouts(run.id)
            if rollout.state != "closed" or store.outcome(rollout.id).version == 0
        ]
    if len(said) != place.chosen.n_rollouts:
        faults.append(f"{len(said)} of {place.chosen.n_rollouts} attempts count")
    failures = {(each["class"], each["cause"]): each["n"] for each in report["failures"]}
    return Result([_of_harness(each) for each in report["harnesses"]], said, failures, faults)


def _of_harness(report: dict[str, Any]) -> dict[str, Any]:
    counts = report["counts"]
    kept = {name: value for name, value in report.items() if name != "counts"}
    return kept | {"exact": counts["n_exact"] / counts["n_complete"]}


def _said(store: Store, rollout_id: Any) -> list[list[int]]:
    """What was sampled, a call that was asked for twice told once."""
    calls = [call for call in store.calls(rollout_id) if call.state.is_complete]
    found: list[tuple[list[int], list[int]]] = []
    for call in sorted(calls, key=lambda call: call.seq or 0):
        tokens = store.tokens(call.id)
        pair = (tokens.prompt_ids.tolist(), tokens.out_ids.tolist())
        if not found or found[-1] != pair:
            found.append(pair)
    return [out for _, out in found]


def harmed(place: Place, engine: Engine | None, name: str) -> Result:
    """Make a run, do it the harm of that name, and read what it came to."""
    fault = FAULTS[name]
    with ExitStack() as stack:
        proxy = None
        if fault.through_own_proxy:
            proxy = OwnProcess(place, stack)
            proxy.start()
        words = place.words(name, "--purpose", "train", *(proxy.words if proxy else ()))
        started = time.monotonic()
        process = place.start(words, **(proxy.environment if proxy else {}))
        store = stack.enter_context(Store.open(place.store, read_only=True))
        until(lambda: any(run.name == name for run in store.runs()), "the run")
        scene = Scene(place, engine, words, process, store, run_named(store, name), proxy)
        try:
            fault.do(scene)
            report = place.ended(scene.process)
        except BaseException:
            scene.process.terminate()
            scene.process.communicate()
            raise
    result = result_of(report, place, name)
    result.took_s = time.monotonic() - started
    of_fault = [key for key in result.failures if key[0] == fault.failure_class.value]
    if not of_fault:
        result.faults.append(f"no try ended as {fault.failure_class.value}")
    for kind, cause in result.failures:
        if kind != fault.failure_class.value or cause not in fault.causes:
            result.faults.append(f"a try ended as {kind}: {cause}")
    return result


def undisturbed(place: Place) -> Result:
    """Make the run that the others are held to."""
    started = time.monotonic()
    report = place.ended(place.start(place.words(UNDISTURBED, "--purpose", "train")))
    result = result_of(report, place, UNDISTURBED)
    result.took_s = time.monotonic() - started
    result.faults += [f"a try ended as {kind}: {cause}" for kind, cause in result.failures]
    return result


def checked(place: Place, engine: Engine | None, names: Sequence[str]) -> dict[str, Result]:
    """Make the undisturbed run and the harmed ones; whatever differs is in their `faults`."""
    results = {UNDISTURBED: undisturbed(place)}
    before = results[UNDISTURBED]
    tell(UNDISTURBED, before)
    for name in names:
        result = results[name] = harmed(place, engine, name)
        if result.figures != before.figures:
            result.faults.append(f"figures {result.figures} are not {before.figures}")
        if result.said != before.said:
            result.faults.append("the model said other tokens than undisturbed")
        result.faults += [f"left running: {each}" for each in _left(place)]
        left = [path.name for path in (place.folder / "tmp").rglob("be_*")]
        left += [path.name for path in (place.folder / "tmp").glob("budwood-tasks-*")]
        if left and name != "runner killed":
            result.faults.append(f"left on disk: {left}")
        tell(name, result)
    return results


def _left(place: Place) -> list[str]:
    deadline = time.monotonic() + GONE_WITHIN_S
    while (found := left_of(place.folder / "tmp")) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def tell(name: str, result: Result) -> None:
    """Print what came of a run."""
    tries = ", ".join(f"{k}: {c}: {n}" for (k, c), n in result.failures.items()) or "none"
    print(
        f"{name} ({result.took_s:.0f} s): {len(result.said)} attempts count, failed tries: {tries}"
    )
    if name == UNDISTURBED:
        for each in result.figures:
            print(
                f"  {each['harness']}: {each['n_passed']} of {each['n_attempts']} passed, "
                f"pass@k {each['pass_at']}, exact {each['exact']:.0%}"
            )
    elif not result.faults:
        print("  figures and tokens as undisturbed, nothing left")
    for fault in result.faults:
        print(f"  FAULT {fault}")


@contextmanager
def serving(what: Chosen, *, is_real: bool) -> Iterator[Engine]:
    """An engine that runs."""
    with ExitStack() as stack:
        engine = TaughtVllm(what, stack) if is_real else ScriptedProcess(what, stack)
        engine.start()
        yield engine


def main() -> int:
    """Run as the arguments say; 0 if all held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    add_options(parser, tasks=TASKS, attempts=1)
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="default: all")
    parser.add_argument("--scripted", action="store_true", help="a scripted engine, not vLLM")
    parser.add_argument(
        "--engine", help="URL of a running engine that knows the tasks; it can't be killed"
    )
    given = parser.parse_args()
    if given.engine and "engine killed" in (given.fault or FAULTS):
        parser.error("--engine goes with --fault other than 'engine killed'")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        what = chosen(given, folder / "tasks")
        engine, url = None, given.engine
        if url is None:
            engine = stack.enter_context(serving(what, is_real=not given.scripted))
            url = engine.url
        place = Place(folder, url.removesuffix("/v1"), what, given.concurrency)
        results = checked(place, engine, given.fault or list(FAULTS))
    return 1 if any(result.faults for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
