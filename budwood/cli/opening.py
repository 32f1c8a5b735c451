"""Opening the store for a command, with errors that say what to do.

Exit codes of the commands that read a store: 0 done; 1 it could not be done; 2 the command line
or the selector cannot be read, or names nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .settings import load_settings
from .terminal import fail

if TYPE_CHECKING:
    from budwood.trajectory_store import RolloutId, Store

    from .settings import StoreSettings

StoreOption = Annotated[
    str | None,
    typer.Option("--store", help="Path or URL of the store; else BUDWOOD_STORE__URL."),
]
SELECTOR_HELP = (
    "last, all, a run or rollout (its id or the beginning of it), "
    "or terms such as 'harness=pi reward>0'."
)


def writable_store(settings: StoreSettings) -> Store:
    """Open the store of the settings to record into, made where there is none."""
    from budwood.trajectory_store import Store

    url = settings.url if "://" in settings.url else Path(settings.url).expanduser()
    secrets = tuple(secret.get_secret_value() for secret in settings.secrets)
    return Store.open(url, busy_s=settings.busy_s, secrets=secrets)


@contextmanager
def opened(store: str | None, *, read_only: bool = True) -> Iterator[Store]:
    """Open the store that the option or the settings name; its errors end the command."""
    from budwood.trajectory_store import SelectorError, Store, StoreError

    settings = load_settings(changes={"store": {"url": store}}).store
    url = settings.url if "://" in settings.url else Path(settings.url).expanduser()
    try:
        with Store.open(
            url,
            create=False,
            read_only=read_only,
            busy_s=settings.busy_s,
            secrets=tuple(secret.get_secret_value() for secret in settings.secrets),
        ) as found:
            yield found
    except SelectorError as error:
        fail(str(error), 2)
    except StoreError as error:
        hint = ""
        if isinstance(url, Path) and not url.exists():
            hint = ". Record something first (`budwood record -- COMMAND`), or name another store"
            hint += " with --store"
        fail(f"{error}{hint}")


def one_rollout(store: Store, selector: str) -> RolloutId:
    """Return the one rollout that a selector names; ends the command where it names more."""
    found = store.select(selector)
    if len(found) > 1:
        fail(
            f"{selector!r} names {len(found)} rollouts, and this takes one: "
            + ", ".join(found[:5])
            + (", …" if len(found) > 5 else ""),
            2,
        )
    return found[0]


def explanations() -> dict[str, str]:
    """Return what the reason codes that the proxy writes mean."""
    from budwood.proxy.engine.exactness import EXPLANATIONS as OF_REPLIES
    from budwood.proxy.lineage.reasons import EXPLANATIONS as OF_LINEAGE

    return {str(code): text for code, text in {**OF_LINEAGE, **OF_REPLIES}.items()}
