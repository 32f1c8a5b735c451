"""The whole demo: real harnesses, a real engine, and a tiny model made on the spot.

teacher (a script) ──▶ mini-swe-agent and pi once each ──▶ conversations ──▶ tiny model
                                                                               │
table ◀── replay ◀── scored again ◀── export ◀── recorded ◀── harnesses ◀── vLLM
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..summary import summarise
from .acts import Part, conversation, n_repaired
from .closing import Column
from .engine import engine_of
from .installed import folder_of
from .rescoring import rescore
from .screen import DemoFailed, Place, teacher_running
from .tasks import GREET, REPAIR

if TYPE_CHECKING:
    from budwood.trajectory_store import RolloutId, Store

PARTS = (Part("mini-swe-agent", REPAIR), Part("pi", GREET), Part("pi", REPAIR))
NEEDED = ("torch", "transformers", "datasets")
MODEL = "budwood-tiny"
VOCABULARY = 2_048
MAX_MODEL_LEN = 8_192
TRIES = 3
"""At temperature 1 even a conversation known by heart can go astray."""


def run(place: Place) -> list[Column]:
    """Run it; return the table's columns. Raises DemoFailed."""
    clock = place.clock
    clock.say(
        "This demo records two real harnesses on a real engine: about 3 minutes on 2 idle cores, "
        "2 MB of files here."
    )
    _check_installed()
    place = Place(place.folder, clock, (folder_of("mini-swe-agent"), folder_of("pi")))
    conversations = _learn_from_teacher(place)
    model = _teach(place, conversations)
    with engine_of(place, model, name=MODEL, max_model_len=MAX_MODEL_LEN) as engine:
        for part in PARTS:
            _record(place, part, f"{engine.url}/v1")
        clock.say("the engine may go, the rest needs only what is recorded")
    return _look(place, model)


def _check_installed() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoFailed(
            f"this needs {', '.join(missing)}, which are not installed. In a checkout, `make demo` "
            "installs all; `budwood demo --quick` needs nothing more than Budwood itself."
        )


def _learn_from_teacher(place: Place) -> Path:
    """Have each harness do its task with the teacher once; return the file of conversations."""
    from budwood.trajectory_store import Store

    place.clock.say(
        "a scripted teacher (a program that plays a model; it says so) drives each harness once, "
        "so that the tiny model can learn their true prompts"
    )
    store = place.folder / "teacher.db"
    with teacher_running(place.environment()) as url, ThreadPoolExecutor() as pool:
        done = [pool.submit(part.record, place, url, store=store, is_quiet=True) for part in PARTS]
        for future in done:
            future.result()
    path = place.folder / "conversations.jsonl"
    with Store.open(store, read_only=True) as opened:
        lines = [json.dumps(conversation(opened, part.rollout(opened))) for part in PARTS]
    undone = [part.name for part in PARTS if not part.is_done(place)]
    if undone:
        raise DemoFailed(f"the teacher did not get done: {', '.join(undone)}; see {place.logs}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _teach(place: Place, conversations: Path) -> Path:
    """Make the tiny model and have it learn the conversations by heart; return its folder."""
    place.clock.say(
        f"making a model of 2 layers and teaching it the {len(PARTS)} conversations by heart"
    )
    folder = place.folder / MODEL
    words = ["--vocab", str(VOCABULARY), "--teach", str(conversations)]
    done = subprocess.run(
        [sys.executable, "-m", "budwood.proxy.testing.tiny_model", str(folder), *words],
        env={**place.environment(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DemoFailed(f"the model was not made:\n{done.stderr[-2000:]}")
    place.clock.more(done.stdout.strip())
    return folder


def _record(place: Place, part: Part, engine: str) -> None:
    from budwood.trajectory_store import Store

    for attempt in range(1, TRIES + 1):
        part.record(place, engine)
        with Store.open(place.store, read_only=True) as store:
            if part.went_as_taught(place, store):
                return
        if attempt < TRIES:
            place.clock.say("the tiny model went astray (it samples at temperature 1): once more")


def _n_inexact(store: Store, attempts: Sequence[RolloutId]) -> int:
    """Return how many calls of attempts that went astray are not exact: they must be, too."""
    found = [summarise(store, rollout_id) for rollout_id in attempts]
    return sum(summary.n_complete - summary.n_exact for summary in found)


def _look(place: Place, model: Path) -> list[Column]:
    """Show, export, score again and replay what was recorded."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import disable_progress_bars, load_dataset
    from transformers import AutoTokenizer

    from budwood.trajectory_store import Store

    disable_progress_bars()
    clock = place.clock
    place.budwood("show", "last")
    with Store.open(place.store, read_only=True) as store:
        tokenizer = AutoTokenizer.from_pretrained(model)
        columns = []
        for part in PARTS:
            rollout_id = part.rollout(store)
            is_done = part.is_done(place)
            out = place.folder / f"{part.name}.jsonl"
            place.budwood("export", rollout_id, "--to", "trl-sft", "--out", str(out))
            loaded = load_dataset(
                "json", data_files=str(out), split="train", cache_dir=str(place.folder / "cache")
            )
            rows = [cast("Mapping[str, Any]", row) for row in loaded]
            difference, n_scored = rescore(store, rows, model).get(rollout_id, (0.0, 0))
            clock.more(
                f"loaded by datasets: {len(rows)} row; {n_scored} trained tokens scored again by "
                f"transformers, largest difference {difference:.1e}"
            )
            columns.append(
                Column(
                    title=part.name,
                    rollout_id=rollout_id,
                    summary=summarise(store, rollout_id),
                    is_done=is_done,
                    n_inexact_before=_n_inexact(store, part.attempts(store)[:-1]),
                    n_repaired=n_repaired(store, rollout_id, tokenizer.decode),
                    n_rows=len(rows),
                    n_trained=sum(label != -100 for row in rows for label in row["labels"]),
                    difference=difference,
                    n_scored=n_scored,
                    replay=part.replay(place, rollout_id),
                )
            )
    return columns
