"""Proof of order: a call's record is on the disk before the end of its answer leaves the socket.

    python -m bench.flush_order            exit 0: so it is, for every call
    python -m bench.flush_order --off      with synchronous=OFF: must find it broken, exit 1

Runs the proxy under strace (Debian: apt-get install strace) and reads its system calls: for the
terminal bytes of each answer there must be, after the call's generation was complete, a write of
its record to the write-ahead log and then a flush of that log that returned, all before the bytes
were handed to the kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from budwood.proxy.recording.steps import Step
from budwood.trajectory_store import new_call_id

from .answers import Ask, chat_body, differences, http_request, messages_for
from .connection import connect
from .servers import Server, free_port, open_rollout, scratch_folder, scripted_engine, start

CALLS = "fsync,fdatasync,pwrite64,write,writev,sendto,sendmsg"
NO_STRACE = "strace is missing (Debian: apt-get install strace): nothing was proved"
_LINE = re.compile(
    r"^(?P<pid>\d+) +(?:<\.\.\. (?P<resumed>\w+) resumed>|(?P<name>\w+)\()(?P<rest>.*)$"
)
_CALL_ID = re.compile(rf"ca_[0-9a-z]{{{len(new_call_id()) - 3}}}")  # columns stand side by side
_STEP = re.compile(r'"(ca_[0-9a-z]+) (\d)\\n"')


@dataclass(slots=True)
class Order:
    """Where in the trace each thing happened, by line."""

    complete: dict[str, int] = field(default_factory=dict)
    """The call's generation was complete (its `TERMINAL_HELD` step)."""
    logged: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Its id was written to the write-ahead log."""
    flushed: list[int] = field(default_factory=list)
    """A flush of the log returned."""
    sent: dict[str, int] = field(default_factory=dict)
    """The terminal bytes of its answer were handed over."""

    def broken(self) -> list[str]:
        """Return the calls whose end left too early, and why."""
        out = []
        for call_id, sent in sorted(self.sent.items(), key=lambda item: item[1]):
            since = self.complete.get(call_id, 0)
            logged = [line for line in self.logged[call_id] if since < line < sent]
            if not logged:
                out.append(f"{call_id}: no record written before its end was sent")
            elif not any(logged[0] < line < sent for line in self.flushed):
                out.append(f"{call_id}: its end was sent before any flush of its record returned")
        return out


def read_trace(lines: Iterable[str]) -> Order:
    """Return the order of events in strace's output (`-f -y`)."""
    order = Order()
    begun: dict[tuple[str, str], str] = {}
    for number, line in enumerate(lines):
        found = _LINE.match(line)
        if found is None:
            continue
        pid, rest = found["pid"], found["rest"]
        if found["resumed"]:
            name, rest = found["resumed"], begun.pop((pid, found["resumed"]), "") + rest
            is_end = True
        else:
            name, is_end = found["name"], "<unfinished" not in rest
            if not is_end:
                begun[pid, name] = rest
        _note(order, number, name, rest, is_end=is_end, is_start=not found["resumed"])
    return order


def _note(order: Order, number: int, name: str, rest: str, *, is_end: bool, is_start: bool) -> None:
    target = rest.partition(">")[0]
    if name in ("fsync", "fdatasync"):
        if is_end and "-wal" in target and rest.rstrip().endswith("= 0"):
            order.flushed.append(number)
    elif "-wal" in target:
        if is_end:
            for call_id in set(_CALL_ID.findall(rest)):
                order.logged[call_id].append(number)
    elif is_start and (step := _STEP.search(rest)) and int(step[2]) == Step.TERMINAL_HELD:
        order.complete[step[1]] = number
    elif is_start and "socket:" in target and _is_terminal(rest):
        for call_id in set(_CALL_ID.findall(rest)):
            order.sent.setdefault(call_id, number)


def _is_terminal(rest: str) -> bool:
    return "data: [DONE]" in rest or '\\"object\\":\\"chat.completion\\"' in rest


async def talk(base: str, key: str, *, calls: int, clients: int) -> int:
    """Make calls one after the other, then several at once; return how many were right."""
    right = 0

    async def one(seed: int) -> None:
        nonlocal right
        ask = Ask(stream=seed % 2 == 0, chunks=12, asks_ids=False)
        connection = await connect(base)
        await connection.send(http_request(base, key, chat_body(ask, messages_for(ask, seed))))
        right += not differences(ask, seed, connection.status, bytes(connection.body))
        connection.abort()

    for seed in range(calls):
        await one(seed)
    for start_at in range(calls, 2 * calls, clients):
        await asyncio.gather(*(one(start_at + i) for i in range(clients)))
    return right


def traced(folder: Path, engine: Server, *, is_off: bool, calls: int) -> Order:
    """Run a proxy under strace and talk to it; return the order it kept."""
    port, admin_port = free_port(), free_port()
    name = "off" if is_off else "full"
    trace = folder / f"trace.{name}"
    command = [
        "strace", "-f", "-y", "-qq", "-s", "200000", "-e", f"trace={CALLS}", "-e", "signal=none",
        "-o", str(trace), sys.executable, "-m", "bench.traced_proxy", "--engine", engine.url,
        "--store", str(folder / f"{name}.db"), "--steps", str(folder / f"steps.{name}"),
        "--port", str(port), "--admin-port", str(admin_port), "--admin-secret", "s" * 32,
        *(["--synchronous-off"] if is_off else []),
    ]  # fmt: skip
    proxy = start(command, f"http://127.0.0.1:{port}", folder / f"{name}.log", patience_s=120)
    try:
        proxy.admin_url, proxy.admin_secret = f"http://127.0.0.1:{admin_port}", "s" * 32
        _, key = open_rollout(proxy, "order")
        asyncio.run(talk(f"{proxy.url}/v1", key, calls=calls, clients=8))
    finally:
        proxy.stop(30)
    with trace.open(errors="replace") as lines:
        return read_trace(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Prove it, or show where it is broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--off", action="store_true", help="with synchronous=OFF: must exit 1")
    parser.add_argument("--calls", type=int, default=40, help="one by one, then as many at once")
    options = parser.parse_args(argv)
    if shutil.which("strace") is None:
        print(NO_STRACE, file=sys.stderr)
        return 2
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        engine = stack.enter_context(scripted_engine(folder))
        order = traced(folder, engine, is_off=options.off, calls=options.calls)
    broken = order.broken()
    print(
        f"{len(order.sent)} answers, {len(order.flushed)} flushes of the log:"
        f" {len(broken)} answers ended before their record was on the disk"
    )
    for line in broken[:5]:
        print(f"  {line}")
    if not order.sent:
        print("no answer was seen leaving: the trace shows nothing")
        return 2
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
