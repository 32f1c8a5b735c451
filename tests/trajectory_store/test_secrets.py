"""Secrets in content: found however they are spelled, marked, masked, kept out of training."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budwood.trajectory_store import Store
from budwood.trajectory_store.secrets import SecretScanner

TOKENS = [
    "sk-" + "a1B2" * 8,
    "sk-proj-" + "a1B2" * 8,
    "sk-ant-api03-" + "a1B2" * 8,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 13,
    "glpat-" + "a1B2" * 5,
    "AKIA" + "A1B2" * 4,
    "AIza" + "a1B2c" * 7,
    "hf_" + "a1B2" * 8,
    "xoxb-" + "123-abc" * 3,
    "sk_live_" + "a1B2" * 6,
    "npm_" + "a1B2" * 9,
    "pypi-" + "a1B2" * 13,
    "bw_" + "a1B2c" * 8 + "xyz",
    "-----BEGIN RSA PRIVATE KEY-----",
]
PLAIN = ["task-runner", "ask-me-anything-about-these-long-words", "hf_hub", "AKIA", "bw_", "x" * 90]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("around", ["%s", "key=%s\n", "\n%s\n", '"%s"', "a\\n%s", "\t%s."])
def test_known_tokens_are_found_in_text_and_json(token: str, around: str) -> None:
    scanner = SecretScanner()
    content = around % token
    once = json.dumps({"content": content})
    twice = json.dumps({"arguments": json.dumps({"cmd": content})})
    spelled = f"\\u{ord(token[0]):04x}{token[1:]}"
    hidden = json.dumps({"content": around % "@@"}).replace("@@", spelled)
    assert scanner.in_value([{"content": content}])
    for raw in (once, twice, hidden):
        assert scanner.in_json(raw.encode())
    assert token not in scanner.mask(content)


@pytest.mark.parametrize("text", PLAIN)
def test_ordinary_words_are_no_secrets(text: str) -> None:
    scanner = SecretScanner()
    assert not scanner.in_json(json.dumps({"content": text}).encode())
    assert scanner.mask_value({"a": [text, 1, None]}) == {"a": [text, 1, None]}


@given(st.text(min_size=8).filter(lambda t: t.isprintable()), st.text(), st.booleans())
def test_configured_values_are_found_however_json_spells_them(
    value: str, around: str, ascii_only: bool
) -> None:
    scanner = SecretScanner([value])
    inner = json.dumps({"cmd": around + value + around}, ensure_ascii=ascii_only)
    for content in (around + value + around, inner):
        raw = json.dumps({"content": content}, ensure_ascii=ascii_only).encode("utf-8", "replace")
        assert scanner.in_json(raw)
    assert value not in scanner.mask(around + value + around)


def test_short_values_are_refused() -> None:
    with pytest.raises(ValueError, match="8 characters"):
        SecretScanner(["short"])


def test_a_call_that_read_or_said_a_secret_is_marked_from_there_on(
    store_url: str, hand_of: Any
) -> None:
    with Store.open(store_url, secrets=("correct horse",)) as store:
        hand = hand_of(store)
        from .conftest import body_of

        clean, secret = b'{"role":"user","content":"hi"}', b'{"content":"a correct horse"}'
        before = hand.call([1], [2], body=body_of(clean))
        read = hand.call([1, 2, 3], [4], parent=before, body=body_of(clean, secret))
        later = hand.call([1, 2, 3, 4], [5], parent=read, body=body_of(clean, secret, clean))
        apart = hand.call([9], [8], body=body_of(clean, clean))
        reply = {"role": "assistant", "content": None, "reasoning": "it is ghp_" + "a1B2" * 9}
        said = hand.call([7], [6], body=body_of(clean), reply=reply)
        marked = {c.id for c in store.calls(hand.rollout_id) if "secret" in c.flags}
        assert marked == {read, later, said}
        rows = store.rows(hand.rollout_id)
        assert {c for row in rows.sequences for c in row.call_ids} == {before, apart}
        assert rows.dropped == {"secret": 3}
        assert len(store.sequences(hand.rollout_id, include_secret=True)) == 3
