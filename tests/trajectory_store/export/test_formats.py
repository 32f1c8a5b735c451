"""What each format's rows say, and which sequences become rows."""

import json
import math
from array import array
from collections import Counter

import pytest

from budwood.trajectory_store import FailureClass, Store
from budwood.trajectory_store.export import EXPORTERS, ExportError, ExportOptions, export
from budwood.trajectory_store.export.gate import spans_of
from budwood.trajectory_store.export.records import rebuilt_body
from budwood.trajectory_store.testing import SECRET, START, text_of


@pytest.fixture
def write(store, recorded, tmp_path):
    """Return a function that exports and gives manifest and rows."""

    def written(to, selector="all", **options):
        out = tmp_path / f"out.{to}"
        manifest = export(store, selector, to, out, ExportOptions(**options))
        return manifest.as_json(), [json.loads(line) for line in out.read_bytes().splitlines()]

    return written


def _sampled(store, recorded, name):
    return list(store.tokens(recorded.calls[name]).out_ids)


def _trained(rows):
    """Each run of trained tokens, as text."""
    texts = []
    for row in rows:
        mask = bytes(label != -100 for label in row["labels"])
        texts += [text_of(row["labels"][start:end]) for start, end in spans_of(mask)]
    return texts


def test_sft_rows_train_each_delivered_exact_output_once(write, recorded):
    manifest, rows = write("trl-sft", recorded.tree)
    assert Counter(_trained(rows)) == {
        'First I look.["bash", "{\\"cmd\\": \\"ls\\"}"]["bash", "{\\"cmd\\":\\"pwd\\"}"]': 1,
        "Two files.": 1,
        "Done.": 1,
        "It is empty.": 1,
    }
    assert all(set(row) == {"input_ids", "labels", "rollout", "lane", "branch"} for row in rows)
    assert all(len(row["input_ids"]) == len(row["labels"]) for row in rows)
    assert manifest["rows"] == len(rows) == 3
    assert "rows" not in manifest["options"]  # says what the rows of `parquet` are, and only there
    assert manifest["tokens"]["trained"] == sum(x != -100 for row in rows for x in row["labels"])
    assert manifest["tokens"]["all"] == sum(len(row["input_ids"]) for row in rows)


def test_labels_are_the_ids_themselves_where_they_are_trained(write):
    _, rows = write("trl-sft")
    for row in rows:
        pairs = zip(row["input_ids"], row["labels"], strict=True)
        assert all(label in (-100, token) for token, label in pairs)


def test_everything_left_out_is_counted_by_reason(write):
    manifest, _ = write("trl-sft")
    assert manifest["rollouts"] == {"selected": 5, "written": 4}
    assert manifest["left_out"]["rollouts"] == {"class_environment": 1}
    assert manifest["left_out"]["calls"] == {
        "aborted": 1,
        "failed": 1,
        "inexact": 1,
        "lane": 1,
        "secret": 1,
        "undelivered": 1,
    }
    assert manifest["notes"] == {"open_rollouts": 1}


def test_grpo_rows_split_at_the_first_sampled_token(write, store, recorded):
    _, rows = write("trl-grpo", recorded.hostile)
    (row,) = rows
    first, second = (store.tokens(recorded.calls[f"hostile.{i}"]) for i in (1, 2))
    assert row["prompt_ids"] == list(first.prompt_ids)
    whole = list(second.prompt_ids) + list(second.out_ids)
    assert row["prompt_ids"] + row["completion_ids"] == whole
    sampled = [x for x, m in zip(row["completion_ids"], row["env_mask"], strict=True) if m]
    assert sampled == list(first.out_ids) + list(second.out_ids)
    logprobs = [x for x, m in zip(row["logprobs"], row["env_mask"], strict=True) if m]
    assert logprobs == list(first.logprobs) + list(second.logprobs)
    masked = [x for x, m in zip(row["logprobs"], row["env_mask"], strict=True) if not m]
    assert masked == [0.0] * len(masked)
    assert masked
    assert (row["reward"], row["group"], row["rollout"]) == (0.0, "g1", recorded.hostile)
    assert row["policy_versions"] == [3]


def test_grpo_refuses_rollouts_without_a_reward_and_counts_them(write):
    manifest, rows = write("trl-grpo")
    assert manifest["left_out"]["rollouts"] == {"class_environment": 1, "reward_none": 2}
    assert {row["reward"] for row in rows} == {0.0, 1.0}


def test_the_latest_reward_counts(write, store, recorded):
    store.score(recorded.tree, 0.25, by="later")
    _, rows = write("trl-grpo", recorded.tree)
    assert {row["reward"] for row in rows} == {0.25}


def test_a_failure_of_the_policy_is_exported_and_one_of_the_verifier_is_not(write, store, recorded):
    store.score(recorded.tree, 0.0, by="v", failure_class=FailureClass.POLICY, cause="budget_calls")
    store.score(recorded.hostile, 1.0, by="v", failure_class=FailureClass.VERIFIER)
    _, rows = write("trl-grpo")
    assert {row["rollout"] for row in rows} == {recorded.tree}


def test_inexact_outputs_go_out_only_when_asked_for(write, recorded):
    _, plain = write("trl-sft", recorded.tree)
    _, more = write("trl-sft", recorded.tree, include_inexact=True)
    assert "Going on." not in _trained(plain)
    assert Counter(_trained(more)) == Counter([*_trained(plain), "Going on."])


def test_side_lanes_go_out_by_choice(write, recorded):
    _, rows = write("trl-sft", recorded.tree, lanes=("side",))
    assert _trained(rows) == ["Files"]


def test_no_detokenised_row_holds_a_secret_unless_asked_for(write, recorded):
    for to in ("trl-sft", "trl-grpo"):
        _, rows = write(to)
        ids = [row.get("input_ids") or row["prompt_ids"] + row["completion_ids"] for row in rows]
        assert not any(SECRET in text_of(one) for one in ids)
    _, rows = write("trl-sft", recorded.secret, include_secrets=True)
    assert any(SECRET in text_of(row["input_ids"]) for row in rows)


def test_records_hold_no_secret_in_text_or_tokens_unless_asked_for(write, recorded, tmp_path):
    manifest, rows = write("jsonl")
    assert SECRET.encode() not in (tmp_path / "out.jsonl").read_bytes()
    assert not any(SECRET in text_of(ids) for ids in _arrays(rows).values())
    assert manifest["notes"]["redacted_calls"] == 1
    _, rows = write("jsonl", include_secrets=True)
    assert SECRET.encode() in (tmp_path / "out.jsonl").read_bytes()
    assert SECRET in text_of(_arrays(rows)[recorded.calls["secret.2"]])


def test_a_secret_behind_escapes_is_masked(write, store, recorded):
    from budwood.trajectory_store.testing import Scribe

    escaped = "".join(f"\\u{ord(c):04x}" for c in SECRET)
    scribe = Scribe(store, store.rollout(recorded.running))
    arguments = f'{{"cmd": "echo {escaped}"}}'
    scribe.call(scribe.lane(), [{"role": "user", "content": "x"}], tool_calls=[("sh", arguments)])
    manifest, rows = write("jsonl", recorded.running)
    assert manifest["notes"]["redacted_calls"] == 1
    replies = [row["reply"] for row in rows if row.get("reply")]
    spoken = [json.loads(c["arguments"])["cmd"] for r in replies for c in r["tool_calls"]]
    assert "echo █secret█" in spoken
    assert not any(SECRET in text for text in spoken)


def test_records_of_a_call_marked_for_an_unknown_value_are_withheld(tmp_path):
    from budwood.trajectory_store.testing import Scribe

    with Store.open(tmp_path / "s.db", secrets=("hunter2hunter2",)) as store:
        run = store.open_run("r")
        rollout = store.open_rollout(run.id)
        scribe = Scribe(store, rollout)
        scribe.call(scribe.lane(), [{"role": "user", "content": "pw hunter2hunter2"}], "ok")
    with Store.open(tmp_path / "s.db") as store:
        export(store, "all", "jsonl", tmp_path / "out")
    assert b"hunter2hunter2" not in (tmp_path / "out").read_bytes()


def _arrays(rows):
    """Prompt + output of each call that has tokens, rebuilt as the format says."""
    whole = {}
    for row in rows:
        tokens = row.get("tokens")
        if tokens:
            before = whole[tokens["base"]][: tokens["common"]] if tokens["base"] else []
            whole[row["id"]] = before + tokens["prompt_ids"] + tokens["out_ids"]
    return whole


def test_records_rebuild_every_body_and_array(write, store, recorded):
    _, rows = write("jsonl", include_secrets=True)
    assert [row["record"] for row in rows].count("run") == 1
    bodies = {}
    for row in rows:
        if row["record"] != "call":
            continue
        base = row["request"]["base"]
        body = rebuilt_body(row["request"], bodies[base] if base else b"")
        assert body == store.request_body(row["id"])
        bodies[row["id"]] = body
    assert len(bodies) == sum(len(store.calls(r.id)) for r in store.rollouts())
    for call_id, ids in _arrays(rows).items():
        tokens = store.tokens(call_id)
        assert ids == list(tokens.prompt_ids + tokens.out_ids)


def test_records_keep_replies_lanes_and_outcomes(write, store, recorded):
    _, rows = write("jsonl", recorded.tree)
    by_record = Counter(row["record"] for row in rows)
    assert by_record == {"head": 1, "run": 1, "rollout": 1, "lane": 3, "outcome": 2, "call": 9}
    calls = {row["id"]: row for row in rows if row["record"] == "call"}
    assert calls[recorded.calls["tree.1"]]["reply"]["reasoning"] == "First I look."
    assert calls[recorded.calls["tree.failed"]]["cause"] == "cut"
    assert calls[recorded.calls["tree.fork"]]["edit_of"] == recorded.calls["tree.2"]
    assert not any("key_hash" in row for row in rows)


def test_parquet_holds_the_rows_of_both_kinds(write, store, recorded, tmp_path):
    from pyarrow import parquet

    for rows in ("trl-sft", "trl-grpo"):
        _, lines = write(rows)
        out = tmp_path / f"{rows}.parquet"
        manifest = export(store, "all", "parquet", out, ExportOptions(rows=rows))
        assert manifest.options["rows"] == rows
        table = parquet.read_table(out).to_pylist()
        assert len(table) == len(lines)
        for got, want in zip(table, lines, strict=True):
            assert set(got) == set(want)
            for name, value in want.items():
                same = array("f", got[name]).tolist() if name == "logprobs" else got[name]
                assert same == value


def test_parquet_without_pyarrow_names_the_extra(store, recorded, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExportError, match=r"budwood\[train\]"):
        export(store, "all", "parquet", tmp_path / "x")
    assert list(tmp_path.glob("x*")) == []


def test_greedy_outputs_are_imitated_but_not_reinforced(store, tmp_path):
    from budwood.trajectory_store.testing import Scribe

    rollout = store.open_rollout(store.open_run("r").id)
    scribe = Scribe(store, rollout)
    scribe.call(scribe.lane(), [{"role": "user", "content": "x"}], "ok", flags=("greedy",))
    store.score(rollout.id, 1.0, by="t")
    assert export(store, rollout.id, "trl-sft", tmp_path / "a").counts.n_rows == 1
    refused = export(store, rollout.id, "trl-grpo", tmp_path / "b").counts
    assert refused.n_rows == 0
    assert refused.calls_not_trained == {"greedy": 1}


def test_a_trained_token_without_a_logprob_is_no_grpo_row(store, tmp_path):
    from budwood.trajectory_store.testing import Scribe

    rollout = store.open_rollout(store.open_run("r").id)
    scribe = Scribe(store, rollout)
    scribe.call(scribe.lane(), [{"role": "user", "content": "x"}], "ok", logprobs=None)
    store.score(rollout.id, 1.0, by="t")
    counts = export(store, rollout.id, "trl-grpo", tmp_path / "b").counts
    assert counts.sequences_left_out == {"no_logprobs": 1}
    assert export(store, rollout.id, "trl-sft", tmp_path / "a").counts.n_rows == 1


@pytest.mark.parametrize("to", [name for name in EXPORTERS if name != "parquet"])
def test_every_line_is_plain_json(write, to):
    _, rows = write(to)
    assert rows

    def walk(value):
        if isinstance(value, float):
            assert math.isfinite(value)
        for item in value.values() if isinstance(value, dict) else ():
            walk(item)

    for row in rows:
        walk(row)


def test_spans_are_the_runs_of_one():
    assert spans_of(b"\x00\x01\x01\x00\x01") == ((1, 3), (4, 5))
    assert spans_of(b"") == ()
    assert spans_of(b"\x00") == ()
    assert START > 255
