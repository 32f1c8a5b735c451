"""History policy `keep-reasoning`: a model reads again what it read, whatever was dropped since."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from budwood.proxy.call import parse_chat
from budwood.proxy.testing import Reply
from budwood.trajectory_store import CallState, History, Store

from .fake_engine import FakeEngine
from .harness_edits import REASONING, Messages
from .lineage_check import TOOLS, as_harness_has_it
from .real_lineage import RealLineage

CUT = Reply(content="And then", finish="length")
"""What follows it is rendered whole, so that the prompt shows what is put back."""


@dataclass
class Talk:
    """The calls of one rollout; the last one's prompt and plan."""

    engine: FakeEngine
    lineage: RealLineage
    prompt: str = ""
    plan: Any = None

    async def ask(self, messages: Messages, reply: Reply, *, parsed: bool = True) -> dict[str, Any]:
        """One call; returns the reply as a harness has it."""
        body = {"model": "m", "messages": messages, "tools": TOOLS}
        request = parse_chat(json.dumps(body).encode())
        planned = await self.lineage.plan(request)
        self.prompt = self.engine.tokenizer.decode(planned.prompt_ids)
        self.plan = planned.detail
        sampled = self.engine.sample(reply, 1, tools=True, max_tokens=None)
        if not parsed:  # by an engine without a reasoning parser
            sampled.deltas = [{"content": reply.text()}]
        _, answer = await self.lineage.commit(request, planned, sampled, CallState.COMMITTED)
        return as_harness_has_it(answer)


@pytest.fixture
def talk(tmp_path):
    with Store.open(tmp_path / "store.db") as store:
        run = store.open_run("kept", history=History.KEEP_REASONING)
        engine = FakeEngine()
        yield Talk(engine, RealLineage(store, run, engine, cache_tokens=1))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(message: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a.txt"}


def bare(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in REASONING}


def thinks(thought: str, said: str = "Done.") -> Reply:
    return Reply(reasoning=thought, content=said)


def looks(thought: str) -> Reply:
    return Reply(reasoning=thought, tool_calls=[("bash", {"command": "ls"})])


QUESTION = user("Fix it.")


@pytest.mark.parametrize("restarted", [False, True])
async def test_reasoning_in_a_compacted_history_is_put_back_when_it_is_dropped_later(
    talk, restarted
):
    first = await talk.ask([QUESTION], thinks("first thought"))
    second = await talk.ask([QUESTION, first, user("On.")], thinks("second thought"))
    told = user("Earlier: things were done.")
    cut = await talk.ask([told, second, user("On.")], CUT)
    if restarted:
        talk.lineage.restart()
    await talk.ask([told, bare(second), user("On."), cut, user("Go on.")], CUT)
    assert talk.plan.reasons == ["parent_cut"]
    assert "second thought" in talk.prompt
    assert "first thought" not in talk.prompt


async def test_of_two_samples_that_said_the_same_the_one_that_was_continued_is_put_back(talk):
    one = await talk.ask([QUESTION], thinks("one way"))
    await talk.ask([QUESTION], thinks("another way"))
    cut = await talk.ask([QUESTION, one, user("On.")], CUT)
    await talk.ask([QUESTION, bare(one), user("On."), cut, user("Go on.")], CUT)
    assert "one way" in talk.prompt
    assert "another way" not in talk.prompt


async def test_reasoning_that_is_still_sent_tells_which_of_two_conversations_goes_on(talk):
    one = await talk.ask([QUESTION], thinks("one way"))
    other = await talk.ask([QUESTION], thinks("another way"))
    later = await talk.ask([QUESTION, one, user("On.")], thinks("one end", "Fine."))
    await talk.ask([QUESTION, other, user("On.")], thinks("another end", "Fine."))
    await talk.ask([QUESTION, one, user("On."), bare(later), user("Go on.")], CUT)
    assert (talk.plan.mode, talk.plan.flags) == ("spliced", [])
    assert "one way" in talk.prompt
    assert "one end" in talk.prompt
    assert "another" not in talk.prompt


async def test_ids_of_earlier_calls_tell_which_of_two_conversations_goes_on(talk):
    one = await talk.ask([QUESTION], looks("one way"))
    other = await talk.ask([QUESTION], looks("another way"))
    later = await talk.ask([QUESTION, one, result(one)], thinks("one end"))
    await talk.ask([QUESTION, other, result(other)], thinks("another end"))
    await talk.ask([QUESTION, bare(one), result(one), bare(later), user("Go on.")], CUT)
    assert (talk.plan.mode, talk.plan.flags) == ("spliced", [])
    assert "one way" in talk.prompt
    assert "one end" in talk.prompt
    assert "another" not in talk.prompt


async def test_where_nothing_tells_two_samples_apart_the_latest_is_taken_and_marked(talk):
    one = await talk.ask([QUESTION], thinks("one way"))
    await talk.ask([QUESTION], thinks("another way"))
    await talk.ask([QUESTION, bare(one), user("On.")], CUT)
    assert talk.plan.flags == ["ambiguous"]
    assert "another way" in talk.prompt


async def test_ids_of_the_harness_own_tell_nothing(talk):
    one = await talk.ask([QUESTION], looks("one way"))
    await talk.ask([QUESTION], looks("another way"))
    renamed = {**bare(one), "tool_calls": [{**one["tool_calls"][0], "id": "toolu_1"}]}
    await talk.ask([QUESTION, renamed, result(renamed)], CUT)
    assert talk.plan.flags == ["ambiguous"]
    assert "another way" in talk.prompt


async def test_changed_reasoning_is_read_as_sent_and_what_was_dropped_before_it_put_back(talk):
    first = await talk.ask([QUESTION], thinks("first thought"))
    second = await talk.ask([QUESTION, first, user("On.")], thinks("second thought"))
    changed = {**bare(second), "reasoning": "summed up"}
    sent = [QUESTION, bare(first), user("On."), changed, user("Go on.")]
    third = await talk.ask(sent, thinks("third thought"))
    assert talk.plan.mode == "rendered"
    assert "first thought" in talk.prompt
    assert "summed up" in talk.prompt
    assert "second thought" not in talk.prompt

    sent = [QUESTION, first, user("On."), bare(second), user("Go on."), bare(third), user("On.")]
    await talk.ask(sent, CUT)
    assert talk.plan.mode == "spliced"
    assert "summed up" in talk.prompt
    assert "third thought" in talk.prompt


async def test_a_think_block_that_is_cut_out_of_the_text_is_put_back(talk):
    answer = await talk.ask([QUESTION], thinks("hidden thought"), parsed=False)
    assert answer["content"].startswith("<think>")
    shown = {**answer, "content": "Done."}
    cut = await talk.ask([QUESTION, shown, user("On.")], CUT)
    assert talk.plan.mode == "spliced"
    await talk.ask([QUESTION, shown, user("On."), cut, user("Go on.")], CUT)
    assert talk.plan.mode == "rendered"
    assert talk.prompt.count("hidden thought") == 1


async def test_reasoning_that_is_sent_as_a_think_block_is_not_put_back_a_second_time(talk):
    answer = await talk.ask([QUESTION], thinks("hidden thought"))
    sent = {**bare(answer), "content": "<think>\nhidden thought\n</think>\n\nDone."}
    cut = await talk.ask([QUESTION, sent, user("On.")], CUT)
    assert talk.plan.mode == "spliced"
    await talk.ask([QUESTION, sent, user("On."), cut, user("Go on.")], CUT)
    assert talk.plan.mode == "rendered"
    assert talk.prompt.count("hidden thought") == 1
