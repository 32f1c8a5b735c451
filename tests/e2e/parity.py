"""The same rollouts with and without the proxy: the same prompts at the engine, the same rewards.

    python -m tests.e2e.parity [--task FOLDER ...] [--harness NAME ...] [--attempts 2]

`budwood run` twice at temperature 0: through the recording proxy, and `--direct --keep-requests`.
Call by call three texts are compared, each written by the engine itself:

    read      the recorded prompt ids of the proxied call (/detokenize)
    sent      the same call's body as the harness sent it, rendered whole (/render)
    direct    the body that the engine got without the proxy, rendered whole (/render)

`read` may differ from `sent` in the spelling of own output only, `sent` from `direct` only where
the run itself shows (`prompt_differences.py`). Every difference is counted by its name; one without
a name, another number of calls or another reward is a fault. That the kept requests are all that
the engine was given without the proxy is held to its own count of prompt tokens.

Without `--engine` a tiny model is taught the tasks and served by real vLLM. Exits 1 at a fault.
"""

import argparse
import logging
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import httpx
import orjson
import structlog

from budwood.rollouts.run import Key
from budwood.trajectory_store import Call, CallId, Rollout, Store

from .prompt_differences import (
    SAME_TOKENS_NOT,
    Difference,
    of_own_output,
    of_requests,
    of_two_runs,
)
from .run_command import Place, counted, run_named
from .taught_tasks import TASKS, add_options, chosen, taught_engine

RENDER_S = 120.0


class EngineText:
    """What the engine makes of a request, and of ids; it renders without sampling."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=RENDER_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def rendered(self, body: bytes) -> list[int]:
        """The ids that a request's messages and tools are to the engine."""
        return self._post("/v1/chat/completions/render", orjson.loads(body))["token_ids"]

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens too."""
        return self._post("/detokenize", {"tokens": list(ids)})["prompt"] if ids else ""

    def n_prompt_tokens(self) -> int | None:
        """How many prompt tokens it was given since its start; None where it does not count."""
        answer = self._http.get("/metrics")
        found = re.findall(r"^vllm:prompt_tokens_total\{.*\} (\S+)$", answer.text, re.MULTILINE)
        return sum(int(float(each)) for each in found) if found else None

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._http.post(path, json=body)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:500]}")
        return answer.json()


@dataclass(slots=True)
class Parity:
    """What was found; `faults` is empty where all was the same."""

    counts: Counter[str] = field(default_factory=Counter[str])
    prompts: Counter[str] = field(default_factory=Counter[str])
    """Name of a difference between prompts as the engine read them → in how many places."""
    requests: Counter[str] = field(default_factory=Counter[str])
    """The same of the bodies that the harnesses sent."""
    rewards: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list)
    n_direct_tokens: int = 0

    def note(self, where: str, found: Sequence[Difference], among: Counter[str]) -> None:
        """Count differences by their names; those without are faults."""
        for each in found:
            if each.name is None:
                self.faults.append(f"{where}: {_cut(each.one)!r} is {_cut(each.other)!r} directly")
            else:
                among[each.name] += 1

    def report(self) -> str:
        """The figures, for people."""
        lines = [f"{name}: {n}" for name, n in self.counts.items()]
        lines += [f"rewards: {', '.join(f'{n} x {r}' for r, n in sorted(self.rewards.items()))}"]
        for title, found in (("prompts", self.prompts), ("requests", self.requests)):
            lines.append(f"differences of {title}, by name:{'' if found else ' none'}")
            lines += [f"  {name}: {n}" for name, n in sorted(found.items())]
        lines.append(f"faults: {len(self.faults)}")
        return "\n".join([*lines, *(f"  {fault}" for fault in self.faults)])


def _cut(text: str) -> str:
    return text if len(text) <= 400 else f"{text[:200]}...{text[-200:]}"


def compare(
    store: Store,
    proxied: dict[Key, list[Rollout]],
    direct: dict[Key, list[Rollout]],
    requests: Path,
    engine: EngineText,
) -> Parity:
    """Hold two runs of the same attempts against each other, call by call."""
    found = Parity()
    if proxied.keys() != direct.keys():
        found.faults.append(f"other attempts: {proxied.keys() ^ direct.keys()}")
    for key in sorted(proxied.keys() & direct.keys()):
        (one,), (other,) = proxied[key], direct[key]
        where = f"{one.task} by {one.harness}, attempt {one.attempt}"
        rewards = [store.outcome(each.id).reward for each in (one, other)]
        found.counts["rollouts"] += 1
        found.rewards[f"{rewards[0]:g}"] += 1
        if rewards[0] != rewards[1]:
            found.faults.append(f"{where}: reward {rewards[0]} is {rewards[1]} directly")
        calls = sorted(
            (call for call in store.calls(one.id) if call.state.is_complete),
            key=lambda call: call.seq or 0,
        )
        kept = (requests / f"{other.id}.jsonl").read_bytes().splitlines()
        bodies = [orjson.loads(line).encode() for line in kept]
        if len(calls) != len(bodies):
            found.faults.append(f"{where}: {len(calls)} calls are {len(bodies)} directly")
        for call, body in zip(calls, bodies, strict=False):
            _compare_call(store, call, body, engine, found, f"{where}, call {call.turn_index + 1}")
        for body in bodies[len(calls) :]:
            found.n_direct_tokens += len(engine.rendered(body))
    return found


def _compare_call(
    store: Store, call: Call, body: bytes, engine: EngineText, found: Parity, where: str
) -> None:
    found.counts["calls"] += 1
    found.counts["exact"] += call.exact
    found.counts["spliced"] += call.prompt_mode == "spliced"
    own_body = store.request_body(call.id)
    found.note(where, of_requests(own_body, body), found.requests)
    read_ids = list(store.tokens(call.id).prompt_ids)
    direct_ids = engine.rendered(body)
    found.n_direct_tokens += len(direct_ids)
    cuts = [0, *own_output(store, call), len(read_ids)]
    parts = [engine.text(read_ids[a:b]) for a, b in pairwise(cuts)]
    sent = engine.text(engine.rendered(own_body))
    differences = of_own_output(parts, sent)
    differences += of_two_runs(sent, engine.text(direct_ids))
    found.note(where, differences, found.prompts)
    if not differences and read_ids == direct_ids:
        found.counts["prompts that are the same, token for token"] += 1
    elif not differences:
        found.counts["prompts that are the same text"] += 1
        found.prompts[SAME_TOKENS_NOT] += 1
    else:
        found.counts["prompts with differences"] += 1


def own_output(store: Store, call: Call) -> list[int]:
    """Begin and end, in a call's prompt, of each earlier output that was put back as sampled."""
    prompt = store.tokens(call.id).prompt_ids
    cuts: list[int] = []
    parent: CallId | None = call.parent
    while parent is not None:
        before = store.tokens(parent)
        begin, end = len(before.prompt_ids), len(before.prompt_ids) + len(before.out_ids)
        if prompt[:end] != before.prompt_ids + before.out_ids:
            break  # from here on the prompt is a whole render
        cuts[:0] = [begin, end]
        parent = store.call(parent).parent
    return cuts


def parity(place: Place) -> Parity:
    """Make both runs and compare them; raises RunFailed."""
    requests = place.folder / "requests"
    directly = ("--direct", "--keep-requests", str(requests))
    with EngineText(place.engine) as engine:
        place.ended(place.start(place.words("proxied", "--purpose", "train")))
        before = engine.n_prompt_tokens()
        place.ended(place.start(place.words("direct", *directly)))
        after = engine.n_prompt_tokens()
        with Store.open(place.store, read_only=True) as store:
            one, other = (counted(store, run_named(store, n)) for n in ("proxied", "direct"))
            found = compare(store, one, other, requests, engine)
    if before is not None and after is not None:
        found.counts["prompt tokens, by the engine's count, without the proxy"] = after - before
        if after - before != found.n_direct_tokens:
            found.faults.append(f"the kept requests are {found.n_direct_tokens} prompt tokens")
    if found.counts["rollouts"] != place.chosen.n_rollouts:
        found.faults.append(f"{place.chosen.n_rollouts} rollouts were asked for")
    return found


def main() -> int:
    """Run as the arguments say; 0 if all was the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    add_options(parser, tasks=TASKS, attempts=2)
    parser.add_argument("--engine", help="URL of a running engine that samples greedily by default")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        what = chosen(given, folder / "tasks")
        url = given.engine or stack.enter_context(taught_engine(what)).url
        place = Place(folder, url.removesuffix("/v1"), what, given.concurrency)
        found = parity(place)
    print(found.report())
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
