"""A run of five rollouts that holds one of everything a reader has to cope with."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ids import CallId, RolloutId, RunId
from ..outcome import FailureClass
from ..records import CallState, LaneKind, Rollout
from ..store import Store
from .scribe import Message, Scribe

SECRET = "sk-proj-examplesecretexamplesecret01"
"""Stands in the content of the rollout `secret`; it opens nothing."""
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
    "[link](javascript:alert(1)) \x1b[2J\x1b]0;owned\x07 {{ 7*7 }} </pre></html>"
)


@dataclass(slots=True)
class Examples:
    """The ids of what was recorded."""

    run_id: RunId
    tree: RolloutId
    """Reward 1: three main calls with a fork, a sub-agent, a title call, and failures."""
    hostile: RolloutId
    """Reward 0, in the same group: texts that attack pages and terminals."""
    secret: RolloutId
    """Not graded; a secret stands in its second call."""
    broken: RolloutId
    """Failed by its environment."""
    running: RolloutId
    """Still open, not graded."""
    calls: dict[str, CallId] = field(default_factory=dict[str, CallId])
    """By name: `tree.1`, `tree.fork`, ..."""


def record_examples(store: Store) -> Examples:
    """Record the examples and return their ids."""
    run = store.open_run("examples", seed=7, settings={"note": "made by hand"})

    def rollout(task: str, group_id: str | None = None) -> Rollout:
        return store.open_rollout(
            run.id,
            task=task,
            group_id=group_id,
            harness="example",
            model="example",
            labels={"kind": task},
        )

    tree, hostile = rollout("tree", group_id="g1"), rollout("hostile", group_id="g1")
    secret, broken, running = rollout("secret"), rollout("broken"), rollout("running")
    examples = Examples(run.id, tree.id, hostile.id, secret.id, broken.id, running.id)
    _tree(Scribe(store, tree), examples)
    _conversation(Scribe(store, hostile), examples, "hostile", HOSTILE)
    _conversation(Scribe(store, secret), examples, "secret", f"token={SECRET}")
    _conversation(Scribe(store, broken), examples, "broken", "ls")
    _conversation(Scribe(store, running), examples, "running", "ls")
    for closed in (tree, hostile, secret, broken):
        store.close_rollout(closed.id)
    store.score(tree.id, 0.5, by="example verifier")
    store.score(tree.id, 1.0, by="a person")
    store.score(hostile.id, 0.0, by="example verifier")
    store.score(
        broken.id,
        None,
        by="runner",
        failure_class=FailureClass.ENVIRONMENT,
        cause="sandbox_lost",
    )
    return examples


def _start(task: str) -> list[Message]:
    return [
        {"role": "system", "content": "You are an example."},
        {"role": "user", "content": f"Do {task}."},
    ]


def _tool(output: str, call: Message) -> Message:
    return {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": output}


def _conversation(scribe: Scribe, examples: Examples, name: str, output: str) -> None:
    """Two calls: a tool call, and an answer that repeats what the tool said."""
    lane = scribe.lane()
    first = scribe.call(lane, _start(name), tool_calls=[("bash", '{"cmd": "cat notes"}')])
    said = scribe.history[first]
    second = scribe.call(
        lane, [*said, _tool(output, said[-1])], f"It says: {output}", parent=first, stream=False
    )
    examples.calls |= {f"{name}.1": first, f"{name}.2": second}


def _tree(scribe: Scribe, examples: Examples) -> None:
    main, sub = scribe.lane(), None
    one = scribe.call(
        main,
        _start("tree"),
        reasoning="First I look.",
        tool_calls=[("bash", '{"cmd": "ls"}'), ("bash", '{"cmd":"pwd"}')],
    )
    said = scribe.history[one]
    two = scribe.call(main, [*said, _tool("a.py\nb.py", said[-1])], "Two files.", parent=one)
    said = scribe.history[two]
    sub = scribe.lane(LaneKind.SUB_AGENT, parent_lane=main.id)
    helper: list[Message] = [
        {"role": "system", "content": "You are a helper."},
        {"role": "user", "content": "Read a.py."},
    ]
    calls = {"tree.1": one, "tree.2": two, "tree.sub": scribe.call(sub, helper, "It is empty.")}
    title: list[Message] = [{"role": "user", "content": "Name this conversation."}]
    calls["tree.title"] = scribe.call(scribe.lane(LaneKind.SIDE), title, "Files")
    go_on: Message = {"role": "user", "content": "Go on."}
    calls["tree.inexact"] = scribe.call(
        main,
        [*said, go_on],
        "Going on.",
        parent=two,
        exact=False,
        reasons=("engine_ignored_ids",),
    )
    edited = [{k: v for k, v in m.items() if k != "reasoning_content"} for m in said]
    calls["tree.fork"] = scribe.call(
        main,
        [*edited, {"role": "user", "content": "Once more, schön."}],
        "Done.",
        reasons=("reasoning_dropped",),
        edit_of=two,
    )
    calls["tree.undelivered"] = scribe.call(
        main, [*said, go_on, go_on], "Nobody heard this.", state=CallState.UNDELIVERED
    )
    calls["tree.aborted"] = scribe.call(
        main,
        [*said, {"role": "user", "content": "Stop."}],
        state=CallState.ABORTED,
        parent=two,
        failure_class=FailureClass.HARNESS,
        cause="client_gone",
    )
    calls["tree.failed"] = scribe.call(
        main,
        [*said, {"role": "user", "content": "Again."}],
        state=CallState.FAILED,
        parent=two,
        failure_class=FailureClass.ENGINE,
        cause="cut",
    )
    examples.calls |= calls
