"""`budwood show`: what is recorded, on a terminal or in a pipe.

Exit codes: 0 shown; 1 the store cannot be read; 2 the command line or the selector cannot be
read, or names nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from .opening import SELECTOR_HELP, StoreOption, explanations, opened
from .showing import call_facts, call_line, rollout_facts, rollout_row
from .terminal import Screen, fail, short

if TYPE_CHECKING:
    from budwood.trajectory_store import Call, CallId, RolloutId, Store

POLL_S = 1.0
"""Pause between two looks at a rollout that is followed; each is one short query."""
COLUMNS = ["rollout", "task", "harness", "model", "state", "calls", "exact", "reward", "class"]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("show")(show)


def show(
    selector: Annotated[str | None, typer.Argument(help=SELECTOR_HELP)] = None,
    call: Annotated[
        str | None, typer.Option(help="A call of it: its id, the beginning of it, or its number.")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Token ids and logprobs.")] = False,
    why: Annotated[
        bool, typer.Option("--why", help="Why calls are not exact, and where lanes fork.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as calls come.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    store: StoreOption = None,
) -> None:
    """Show runs; a rollout's lanes as a tree; a call as messages, as tokens, or why.

    Without a selector: all runs. A selector of one rollout shows it, one of several lists them.
    Secrets found in content are masked, and tokens that spell them are not shown.
    """
    screen = Screen()
    with opened(store) as found:
        if selector is None:
            if call or tokens or why or follow:
                fail("--call, --tokens, --why and --follow need a selector, such as last", 2)
            _runs(found, screen, as_json)
            return
        rollouts = found.select(selector)
        if len(rollouts) > 1 and (call or tokens or why or follow):
            fail(f"{selector!r} names {len(rollouts)} rollouts; choose one of them", 2)
        if len(rollouts) > 1:
            _rollouts(found, rollouts, screen, as_json)
        elif call is not None:
            _call(found, _named(found, rollouts[0], call), screen, tokens, why, as_json)
        elif follow:
            _follow(found, rollouts[0], screen, as_json)
        else:
            _rollout(found, rollouts[0], screen, tokens, why, as_json)


def _runs(store: Store, screen: Screen, as_json: bool) -> None:
    rows = [
        {
            "run": run.id,
            "name": run.name,
            "purpose": run.purpose.value,
            "history": run.history.value,
            "rollouts": len(store.rollouts(run.id)),
            "opened": run.created_at.isoformat(timespec="seconds"),
        }
        for run in store.runs()
    ]
    if as_json:
        typer.echo(json.dumps(store.secrets.mask_value(rows), indent=2))
        return
    names = ["run", "name", "purpose", "history", "rollouts", "opened"]
    screen.table(names, [[store.secrets.mask(str(row[n])) for n in names] for row in rows])


def _rollouts(store: Store, ids: list[RolloutId], screen: Screen, as_json: bool) -> None:
    rows = [rollout_row(store, rollout_id) for rollout_id in ids]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    screen.table(COLUMNS, [[str(row[name]) for name in COLUMNS] for row in rows])


def _rollout(
    store: Store, rollout_id: RolloutId, screen: Screen, tokens: bool, why: bool, as_json: bool
) -> None:
    from budwood.trajectory_store.overview import lane_names, tree

    calls, lanes = store.calls(rollout_id), store.lanes(rollout_id)
    if as_json:
        facts = rollout_row(store, rollout_id)
        facts["calls"] = [
            call_facts(store, one, tokens=tokens, why=explanations() if why else None)
            for one in calls
        ]
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    for line in rollout_facts(store, rollout_id):
        screen.line(line)
    names, numbers = lane_names(lanes), {one.id: n for n, one in enumerate(calls, 1)}
    screen.tree(
        (line.depth, names[line.lane.id] if line.lane else "begun, without a result")
        if line.call is None
        else (line.depth, call_line(line.call, numbers[line.call.id], is_fork=line.is_fork))
        for line in tree(lanes, calls)
    )
    for one in calls:
        if tokens:
            screen.line(f"\ncall {numbers[one.id]} {one.id}", "bold")
            _tokens(store, one, screen)
        if why and (not one.exact or one.reasons or one.parent is None):
            screen.line(f"\ncall {numbers[one.id]} {one.id}", "bold")
            _why(store, one, screen)


def _follow(store: Store, rollout_id: RolloutId, screen: Screen, as_json: bool) -> None:
    """Write a line a call as it ends, until the rollout is closed."""
    from budwood.trajectory_store.overview import lane_names

    seen: set[CallId] = set()
    for is_closed in _movements(store, rollout_id):
        calls = store.calls(rollout_id)
        names = lane_names(store.lanes(rollout_id))
        for number, one in enumerate(calls, 1):
            if one.id in seen or one.state.is_open:
                continue
            seen.add(one.id)
            if as_json:
                typer.echo(json.dumps(call_facts(store, one), ensure_ascii=False))
            else:
                lane = names.get(one.lane, one.lane)
                screen.line(f"{lane}: {call_line(one, number)}")
        if is_closed:
            return


def _movements(store: Store, rollout_id: RolloutId) -> Iterator[bool]:
    """Yield whether the rollout is closed: at once, then each time that something moved."""
    before = None
    while True:
        now = store.progress(rollout_id)
        if now != before:
            yield now[0] == "closed"
        before = now
        try:
            time.sleep(POLL_S)
        except KeyboardInterrupt:
            return


def _named(store: Store, rollout_id: RolloutId, name: str) -> Call:
    calls = store.calls(rollout_id)
    if name.isascii() and name.isdigit():
        if 1 <= int(name) <= len(calls):
            return calls[int(name) - 1]
        fail(f"{rollout_id} has calls 1 to {len(calls)}, no call {name}", 2)
    matching = [one for one in calls if one.id.startswith(name)]
    if len(matching) != 1:
        fail(f"{name!r} is the beginning of {len(matching)} calls of {rollout_id}", 2)
    return matching[0]


def _call(store: Store, call: Call, screen: Screen, tokens: bool, why: bool, as_json: bool) -> None:
    from budwood.trajectory_store.overview import shown
    from budwood.trajectory_store.redaction import Redaction

    if as_json:
        facts = call_facts(
            store, call, tokens=tokens, why=explanations() if why else None, messages=True
        )
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    screen.line(f"{call.id}  {call_line(call, None)}")
    if tokens:
        _tokens(store, call, screen)
    if why:
        _why(store, call, screen)
    if tokens or why:
        return
    redaction = Redaction(call, store.secrets)
    messages = redaction.messages(store.request_messages(call.id))
    for number, message in enumerate(messages):
        _message(screen, f"{number} {shown(message).role}", message)
    reply = redaction.reply(store.request_body(call.id))
    if reply is not None:
        _message(screen, "reply", reply)


def _message(screen: Screen, heading: str, message: object) -> None:
    from budwood.trajectory_store.overview import shown

    seen = shown(message)
    about = f" ({seen.about})" if seen.about else ""
    screen.line(f"\n── {heading}{about}", "bold")
    if seen.reasoning:
        screen.line("reasoning:", "dim")
        screen.line(seen.reasoning, "italic")
    if seen.text:
        screen.line(seen.text)
    for tool in seen.tool_calls:
        screen.line(f"→ {tool.name} {tool.arguments}", "cyan")
    if seen.other:
        screen.line(seen.other, "dim")


def _tokens(store: Store, call: Call, screen: Screen) -> None:
    from budwood.trajectory_store.redaction import Redaction

    if not call.has_ids:
        screen.line("no token ids; --why says why")
        return
    if Redaction(call, store.secrets).hides_tokens:
        screen.line("tokens not shown: a secret was found in this call, and they spell it as well")
        return
    arrays = store.tokens(call.id)
    screen.line(f"prompt, {len(arrays.prompt_ids)} ids:", "dim")
    screen.line(" ".join(map(str, arrays.prompt_ids)))
    screen.line(f"sampled, {len(arrays.out_ids)} ids with logprobs:", "dim")
    pairs = zip(arrays.out_ids, arrays.logprobs, strict=True)
    rows = [
        [str(place), str(token), "none" if logprob != logprob else f"{logprob:.6f}"]
        for place, (token, logprob) in enumerate(pairs)
    ]
    screen.table(["place", "id", "logprob"], rows)


def _why(store: Store, call: Call, screen: Screen) -> None:
    from budwood.trajectory_store.why import explain

    why = explain(store, call, explanations())
    screen.line("exact" if why.is_exact else "not exact", "green" if why.is_exact else "red")
    screen.line(f"{call.state.value}: {why.state}")
    for code, sentence in why.reasons:
        screen.line(f"{code}: {sentence}" if sentence else code)
    if why.fork is not None:
        screen.line(f"leaves {why.fork.against} after {why.fork.n_common} equal messages")
        if why.fork.difference is not None:
            for line in str(why.fork.difference).splitlines():
                screen.line(short(line, 500))
