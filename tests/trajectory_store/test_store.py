"""What goes into a store comes out of it, on both databases."""

from __future__ import annotations

import json
from array import array
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from budwood.trajectory_store import (
    CallState,
    FailureClass,
    Lane,
    LaneKind,
    NotStored,
    NotWritten,
    RequestBody,
    SelectorError,
    Store,
    StoreClosed,
    StoreError,
    new_call_id,
    new_lane_id,
)
from budwood.trajectory_store.bodies import MESSAGES, TOOLS

space = st.text(" \n\t\r", max_size=4).map(str.encode)
value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def cut_bodies(draw: Any) -> tuple[RequestBody, bytes]:
    """A body cut as the proxy cuts it, and the bytes that it was cut from."""

    def spelled() -> bytes:
        return json.dumps(draw(value), ensure_ascii=draw(st.booleans())).encode()

    messages = [spelled() for _ in range(draw(st.integers(0, 5)))]
    regular = draw(st.sampled_from([b",", b", ", b",\n  ", None]))
    between = [
        draw(space) + b"," + draw(space) if regular is None else regular for _ in messages[1:]
    ]
    ends = (b"", b"") if draw(st.booleans()) else (draw(space), draw(space))
    separators = [ends[0], *between, ends[1]] if messages else [ends[0]]
    tools = spelled() if draw(st.booleans()) else None
    fields = [b'"messages":' + draw(space) + b"[" + MESSAGES + b"]"]
    if tools is not None:
        fields.append(b'"tools":' + draw(space) + TOOLS)
    if draw(st.booleans()):
        fields.insert(0, b'"x":' + spelled())
    if draw(st.booleans()):
        fields.reverse()
    envelope = draw(space) + b"{" + draw(space) + b", ".join(fields) + b"}" + draw(space)
    inner = b"".join(a + b for a, b in zip(separators, [*messages, b""], strict=False))
    whole = b"".join(
        inner if piece == MESSAGES else tools or b"" if piece == TOOLS else piece
        for piece in _split(envelope)
    )
    return RequestBody.from_parts(envelope, messages, separators, tools), whole


def _split(envelope: bytes) -> list[bytes]:
    return [envelope[i : i + 1] for i in range(len(envelope))]


@given(cut_bodies())
def test_a_cut_body_joins_to_the_bytes_it_was_cut_from(case: tuple[RequestBody, bytes]) -> None:
    body, whole = case
    assert body.join() == whole


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(bodies=st.lists(cut_bodies(), min_size=1, max_size=4), raw=st.binary(max_size=200))
def test_bodies_come_back_byte_for_byte(hand: Any, bodies: list[Any], raw: bytes) -> None:
    ids = [(hand.call(body=body), whole) for body, whole in bodies]
    ids.append((hand.call(body=raw), raw))
    for call_id, whole in ids:
        assert hand.store.request_body(call_id) == whole
        assert hand.store.call(call_id).body_size == len(whole)
    for (call_id, _), (body, _) in zip(ids, bodies, strict=False):
        assert hand.store.request_messages(call_id) == list(body.messages)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_tokens_come_back_as_given_whatever_is_claimed(hand: Any, data: st.DataObject) -> None:
    """Edits, wrong claims and unknown bases cost bytes, never a wrong id."""
    ids = st.lists(st.integers(0, 2**32 - 1), max_size=80)
    calls: list[Any] = []
    full: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        keep = data.draw(st.integers(0, len(full)))
        prompt, out = full[:keep] + data.draw(ids), data.draw(ids)
        base = data.draw(st.sampled_from([None, new_call_id(), *(c for c, _, _ in calls)]))
        claim = data.draw(st.integers(0, len(prompt) + 3))
        calls.append((hand.call(prompt, out, prompt_base=base, prompt_common=claim), prompt, out))
        full = prompt + out
    for call_id, prompt, out in calls:
        found = hand.store.tokens(call_id)
        assert (list(found.prompt_ids), list(found.out_ids)) == (prompt, out)
        assert list(found.logprobs) == [-0.5] * len(out)
    assert {c for c, _ in hand.store.rollout_tokens(hand.rollout_id)} >= {c for c, _, _ in calls}


def test_a_long_session_is_stored_by_what_is_new(hand: Any) -> None:
    prompt, parent, common = list(range(1000)), None, 0
    for turn in range(140):
        out = [70_000 + turn] * 5
        parent = hand.call(prompt, out, parent=parent, prompt_base=parent, prompt_common=common)
        prompt = prompt + out
        common = len(prompt)
        prompt = [*prompt, 5, 6, 7]
    for (call_id, tokens), (_, call) in zip(
        hand.store.rollout_tokens(hand.rollout_id),
        enumerate(hand.store.calls(hand.rollout_id)),
        strict=True,
    ):
        assert call_id == call.id
        assert list(tokens.prompt_ids) == prompt[: call.n_prompt]
    assert list(hand.store.tokens(parent).prompt_ids) == prompt[: common - 5]


def test_a_call_tells_all_that_was_said_of_it(hand: Any) -> None:
    parent = hand.call([1, 2], [3])
    intent = hand.intent(stream=True, asked_model="gpt", client={"user-agent": "x\ud800"})
    hand.store.begin_call(intent)
    reply = {"role": "assistant", "content": "a\u0000b", "reasoning": None, "tool_calls": []}
    result = hand.result(
        intent.id,
        [1, 2, 3, 4],
        [5],
        parent=parent,
        edit_of=parent,
        turn_index=1,
        reasons=("tools_changed",),
        sampling={"temperature": 1.0, "seed": 2**70},
        usage={"completion_tokens": 1},
        finish="stop",
        stop_id=5,
        policy_before=3,
        policy_after=3,
        policy_label="w3",
        engine="vllm 0.32",
        template_hash="t",
        tokenizer_hash="k",
        timings={"total": 1.5},
        flags=("ambiguous",),
        reply=reply,
        reply_digest=b"r" * 16,
        chain_key=b"c" * 16,
        bare_key=b"b" * 16,
        template_key=b"k" * 16,
        raw_reply=b'{"raw":1}',
        message_digests=b"d" * 16,
    )
    seq = hand.store.finish_call(result).result()
    call = hand.store.call(intent.id)
    for name in (
        "parent edit_of turn_index reasons sampling usage finish stop_id policy_before reply "
        "policy_label engine template_hash tokenizer_hash timings reply_digest chain_key "
        "template_key exact"
    ).split():
        assert getattr(call, name) == getattr(result, name), name
    assert call.flags == {"ambiguous"}
    assert (call.seq, call.state, call.n_prompt, call.n_out) == (seq, CallState.COMMITTED, 4, 1)
    assert call.client == intent.client
    assert hand.store.raw_reply(intent.id) == b'{"raw":1}'
    assert hand.store.message_digests(intent.id) == b"d" * 16
    turn = hand.store.turns_after(hand.rollout_id, seq - 1)[0]
    assert (turn.id, turn.bare_key, turn.reply, turn.lane) == (
        intent.id,
        b"b" * 16,
        reply,
        hand.lane(),
    )


def test_turns_are_complete_calls_in_order_of_commit(hand: Any) -> None:
    first = hand.call([1], [2])
    for state in (CallState.ABORTED, CallState.FAILED, CallState.SYNTHETIC):
        hand.call([1], [2], state=state)
    without_ids = hand.call(None, None)
    second = hand.call([1], [2], state=CallState.UNDELIVERED)
    turns = hand.store.turns_after(hand.rollout_id, 0)
    assert [t.id for t in turns] == [first, without_ids, second]
    assert (turns[1].n_prompt, turns[1].n_out) == (0, 0)
    after = hand.store.turns_after(hand.rollout_id, turns[1].seq)
    assert [t.id for t in after] == [second]


def test_progress_moves_when_a_call_begins_or_ends_and_only_then(hand: Any) -> None:
    store, rollout_id = hand.store, hand.rollout_id
    assert store.progress(rollout_id) == ("open", 0, 0)
    hand.call([1], [2])
    assert store.progress(rollout_id) == ("open", 1, 0)
    first, second = hand.intent(), hand.intent()
    for intent in (first, second):
        store.begin_call(intent).result()
    assert store.progress(rollout_id) == ("open", 3, 2)
    store.mark(first.id, CallState.STREAMING).result()
    assert store.progress(rollout_id) == ("open", 3, 2)
    store.finish_call(hand.result(first.id, [1], [2])).result()
    assert store.progress(rollout_id) == ("open", 3, 1)
    store.mark(first.id, CallState.DELIVERED).result()
    assert store.progress(rollout_id) == ("open", 3, 1)
    store.mark(second.id, CallState.ABORTED).result()
    assert store.progress(rollout_id) == ("open", 3, 0)
    store.close_rollout(rollout_id)
    assert store.progress(rollout_id) == ("closed", 3, 0)
    with pytest.raises(NotStored):
        store.progress("ro_none")


def test_a_lane_keeps_its_latest_kind(hand: Any) -> None:
    hand.call([1], [2])
    side = Lane(
        id=hand.lane().id,
        rollout_id=hand.rollout_id,
        kind=LaneKind.SIDE,
        created_at=hand.lane().created_at,
        offers_tools=True,
        agent_key=b"a" * 16,
    )
    main = Lane(id=new_lane_id(), rollout_id=hand.rollout_id, created_at=datetime.now(UTC))
    hand.call([1], [2], lane=main, lane_updates=(side,))
    assert hand.store.lanes(hand.rollout_id) == [side, main]


def test_a_second_result_is_refused_and_the_first_stays(hand: Any) -> None:
    call_id = hand.call([1], [2])
    with pytest.raises(NotWritten):
        hand.store.finish_call(hand.result(call_id, [1], [9])).result()
    with pytest.raises(NotWritten):
        hand.store.finish_call(hand.result(new_call_id(), [1], [9])).result()
    assert list(hand.store.tokens(call_id).out_ids) == [2]


def test_one_bad_record_does_not_take_its_batch_with_it(hand: Any) -> None:
    good = [hand.intent() for _ in range(20)]
    begun = [hand.store.begin_call(intent) for intent in good]
    alien = hand.store.begin_call(hand.intent(rollout_id="ro_nowhere"))
    unequal = hand.result(good[0].id, [1], [2, 3], logprobs=array("f", [0.0]))
    wrong = [hand.store.finish_call(unequal), hand.store.finish_call(hand.result(new_call_id()))]
    done = [hand.store.finish_call(hand.result(intent.id, [1], [2])) for intent in good]
    assert len({future.result() for future in done}) == 20
    assert [future.result() for future in begun] == [None] * 20
    for future in (alien, *wrong):
        assert isinstance(future.exception(), NotWritten)
    assert len(hand.store.calls(hand.rollout_id)) == 20


def test_states_are_marked_only_from_where_they_can_be_reached(hand: Any) -> None:
    aborted = hand.call(None, None, state=CallState.ABORTED)
    with pytest.raises(NotWritten):
        hand.store.mark(aborted, CallState.DELIVERED).result()
    left = hand.call([1], [2], state=CallState.UNDELIVERED)
    hand.store.mark(left, CallState.DELIVERED).result()
    hand.store.mark_echoed(left).result()
    call = hand.store.call(left)
    assert (call.state, call.echoed) == (CallState.DELIVERED, True)


def test_outcomes_are_versions_and_never_overwritten(hand: Any) -> None:
    store, rollout_id = hand.store, hand.rollout_id
    ungraded = store.outcome(rollout_id)
    assert (ungraded.version, ungraded.reward, ungraded.failure_class) == (0, None, "none")
    first = store.score(rollout_id, 1, by="tests")
    second = store.score(
        rollout_id, None, by="judge", failure_class=FailureClass.ENGINE, cause="cut"
    )
    assert store.outcomes(rollout_id) == [first, second]
    assert store.outcome(rollout_id) == second
    with pytest.raises(ValueError, match="finite"):
        store.score(rollout_id, float("nan"), by="tests")
    with pytest.raises(NotStored):
        store.score("ro_nowhere", 1, by="tests")  # pyright: ignore[reportArgumentType]


def test_rollouts_are_found_by_key_labelled_and_closed(store: Store) -> None:
    run = store.open_run("batch", settings={"a": 1}, versions={"budwood": "0"}, seed=7)
    key = sha256(b"secret").digest()
    rollout = store.open_rollout(run.id, key_hash=key, harness="pi", labels={"a": 1, "b": 2})
    assert store.run(run.id) == run
    assert store.rollout_by_key(key) == rollout
    assert store.rollout_by_key(b"0" * 32) is None
    with pytest.raises(NotWritten):
        store.open_rollout(run.id, key_hash=key)
    store.label_rollout(rollout.id, {"a": None, "c": [3]})
    store.close_rollout(rollout.id)
    closed = store.rollout(rollout.id)
    assert (closed.state, closed.labels) == ("closed", {"b": 2, "c": [3]})
    assert closed.closed_at is not None
    assert store.rollouts(run.id) == [closed]


def test_selectors_name_rollouts_and_say_what_is_allowed(store: Store) -> None:
    run = store.open_run("night")
    a = store.open_rollout(run.id, harness="pi", task="fix it", labels={"k": "v", "ok": True}).id
    b = store.open_rollout(run.id, harness="codex", model="qwen").id
    store.score(a, 0, by="t")
    store.score(a, 0.5, by="t")
    store.score(b, None, by="t", failure_class=FailureClass.ENGINE)
    store.close_rollout(b)
    for selector, wanted in {
        "last": [b],
        "all": [a, b],
        a: [a],
        a[:-1]: [a],
        run.id: [a, b],
        "run=night": [a, b],
        "harness=pi reward>0": [a],
        "harness!=pi": [b],
        "class=none": [a],
        "class!=none state=closed": [b],
        "reward=0.5": [a],
        "reward=none": [b],
        "model=none": [a],
        "task='fix it'": [a],
        "label.k=v label.ok=true": [a],
        "reward>=0.5": [a],
    }.items():
        assert store.select(selector) == wanted, selector
    for bad in ("", "ro_", "ro_zzzz", "reward>many", "colour=red", "class=odd", "harness=vi", "'"):
        with pytest.raises(SelectorError):
            store.select(bad)


def test_unknown_ids_are_named(store: Store) -> None:
    for read in (store.call, store.tokens, store.request_body, store.rollout, store.run):
        with pytest.raises(NotStored, match="xx_1"):
            read("xx_1")  # pyright: ignore[reportArgumentType]


def test_a_closed_store_takes_nothing_more(store: Store) -> None:
    store.close()
    with pytest.raises(StoreClosed):
        store.open_run("late")


def test_what_was_queued_is_written_before_closing(store_url: str, hand_of: Any) -> None:
    with Store.open(store_url) as first:
        hand = hand_of(first)
        intents = [hand.intent() for _ in range(300)]
        futures = [first.begin_call(intent) for intent in intents]
    assert all(future.result() is None for future in futures)
    with Store.open(store_url, read_only=True) as again:
        assert len(again.calls(hand.rollout_id)) == 300
        with pytest.raises(StoreError, match="read only"):
            again.open_run("no")


def test_a_store_is_not_made_where_none_may_be(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        Store.open(tmp_path / "none.db", create=False)
    with pytest.raises(StoreError, match="does not exist"):
        Store.open(tmp_path / "none.db", read_only=True)
    assert not (tmp_path / "none.db").exists()
