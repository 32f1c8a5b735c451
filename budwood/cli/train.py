"""`budwood train`: new weights from recorded rollouts.

Exit codes: 0 trained; 1 it could not be done; 2 the command line or the configuration cannot be
read, or does not fit the recordings; 3 the alarm: the model is not the one that sampled; 4 nothing
may be trained on.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from .opening import StoreOption, opened
from .terminal import Screen, fail, note

if TYPE_CHECKING:
    from pydantic import BaseModel

    from budwood.trainers import Trained

ALARM, EMPTY = 3, 4
M = TypeVar("M", bound="BaseModel")

ConfigArgument = Annotated[Path, typer.Argument(help="TOML file; docs/training.md says its keys.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder of the run, instead of the file's.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    train = typer.Typer(help="Train a model on recorded rollouts.", no_args_is_help=True)
    train.callback()(lambda: None)
    train.command("sft")(sft)
    train.command("grpo")(grpo)
    app.add_typer(train, name="train")


def sft(
    config: ConfigArgument,
    output: OutputOption = None,
    from_text: Annotated[
        bool,
        typer.Option("--from-text", help="Also recordings without token ids, rendered anew."),
    ] = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Imitate recorded rollouts: a loss on the tokens that were sampled, and on no others.

    Repeated after it was ended, it goes on from its newest checkpoint. What is not exact, failed by
    another's fault, or holds a secret is left out and counted.
    """
    from budwood.trainers import SftConfig, train_sft

    changes = {"output": output, "from_text": from_text or None}
    _run(train_sft, _read(SftConfig, config, changes), store, as_json)


def grpo(
    config: ConfigArgument,
    output: OutputOption = None,
    shuffle_advantages: Annotated[
        bool,
        typer.Option("--shuffle-advantages", help="The control run: nothing can be learnt."),
    ] = False,
    as_json: JsonOption = False,
    store: StoreOption = None,
) -> None:
    """Compare the rollouts of recorded groups, and make the better ones more likely.

    Rollouts whose reward is none are in no baseline and no loss. Before the first step the recorded
    logprobs are compared with the model's own: exit code 3 where they are not of this model.
    Repeated after it was ended, it goes on from its newest checkpoint.
    """
    from budwood.trainers import GrpoConfig, train_grpo

    changes = {"output": output, "shuffle_advantages": shuffle_advantages or None}
    _run(train_grpo, _read(GrpoConfig, config, changes), store, as_json)


def _read(model: type[M], path: Path, changes: dict[str, Any]) -> M:
    """Read a configuration; the options of the command line count before it."""
    from pydantic import ValidationError

    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        fail(f"{path} cannot be read: {error}", 2)
    given |= {name: value for name, value in changes.items() if value is not None}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        found = [
            f"  {'.'.join(map(str, each['loc']))}: {each['msg']}"
            for each in error.errors(include_url=False)
        ]
        fail("\n".join([f"{path} cannot be used:", *found]), 2)


def _run(train: Any, config: Any, store: str | None, as_json: bool) -> None:
    from budwood.trainers import ConfigError, Mismatched, NothingToTrain, TrainerError

    with opened(store) as found:
        try:
            trained: Trained = train(found, config, say=note)
        except NothingToTrain as error:
            fail(str(error), EMPTY)
        except Mismatched as error:
            fail(str(error), ALARM)
        except ConfigError as error:
            fail(str(error), 2)
        except TrainerError as error:
            fail(str(error))
    if as_json:
        paths = {name: str(getattr(trained, name)) for name in ("folder", "model", "report")}
        typer.echo(json.dumps({**paths, "steps": trained.steps}, indent=2))
        return
    screen = Screen()
    screen.line(f"{trained.steps} steps")
    screen.line(f"weights  {trained.model}")
    screen.line(f"report   {trained.report}")
