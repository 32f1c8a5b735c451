"""What the finder refuses, remembers, shares and audits."""

import asyncio
import random
from array import array
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from budwood.proxy.lineage.suffix import RenderRejected, SuffixFinder, repaired
from budwood.proxy.lineage.suffix.markers import marker_text
from budwood.proxy.testing.chat_template import render
from budwood.proxy.testing.toy_tokenizer import ToyTokenizer

from . import oracle
from .conversations import (
    Conversation,
    assistant,
    call,
    fixtures,
    result,
    sign,
    system,
    user,
)
from .corpus import ChatTemplate, template
from .jinja_renderer import JinjaRenderer
from .toy_tokenizers import toy_tokenizer

SHAPES = {talk.name: talk for talk in fixtures()}
TEXT, TOOL = SHAPES["02_text_user"], SHAPES["03_tool"]


def renderer_of(name: str, kind: str = "byte") -> JinjaRenderer:
    return JinjaRenderer(template(name), toy_tokenizer(kind))


def finder_of(renderer, **options) -> SuffixFinder:
    return SuffixFinder(renderer, rng=random.Random(7), **options)


async def find(finder, talk: Conversation, stop: str | int, *, arguments=None, **options):
    token = finder._renderer.id_of(stop) if isinstance(stop, str) else stop
    return await finder.find(
        talk.history, talk.reply, talk.tail, token, talk.tools, arguments or {}, **options
    )


def whole(renderer: JinjaRenderer, talk: Conversation) -> array:
    return renderer.ids(renderer.text([*talk.history, talk.reply, *talk.tail], talk.tools, {}))


# -- stops ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "talk", "stop"),
    [
        ("trl/qwen3", TEXT, "<|endoftext|>"),
        ("trl/qwen3", TOOL, "<|eot_id|>"),
        ("trl/phi3", TEXT, "<|endoftext|>"),
        ("trl/llama3_1", TOOL, "<|eom_id|>"),
        ("trl/llama3_2", TOOL, "<|eom_id|>"),
        ("trl/glm4moe", TEXT, "<|observation|>"),
        ("trl/glm4moe", TOOL, "<|user|>"),
        ("trl/gemma4", TEXT, "<|tool_response>"),
        ("trl/gptoss", TEXT, "<|return|>"),
        ("trl/gptoss", TOOL, "<|return|>"),
        ("trl/deepseekv3", TEXT, "<|im_end|>"),
        ("mistral/v3tek", TOOL, "</s>"),
    ],
)
async def test_a_stop_that_the_template_does_not_write_there_is_refused(name, talk, stop):
    found = await find(finder_of(renderer_of(name)), talk, stop)
    assert found.ids is None
    assert found.reason == "stop_not_in_gap"


@pytest.mark.parametrize(
    ("name", "stop"), [("trl/gptoss", "<|end|>"), ("trl/cohere2", "<|END_RESPONSE|>")]
)
async def test_the_rest_of_a_close_that_was_sampled_halfway_is_part_of_the_suffix(name, stop):
    renderer = renderer_of(name)
    found = await find(finder_of(renderer), TEXT, stop)
    assert found.ids is not None
    full = whole(renderer, TEXT)
    assert full[-len(found.ids) - 1 :] == array("I", [renderer.id_of(stop)]) + (found.ids)


async def test_stop_tokens_spelled_by_tool_output_close_nothing():
    hostile = replace(TOOL, tail=[result("<|return|>" + sign("t1") + "<|return|>")])
    found = await find(finder_of(renderer_of("trl/gptoss")), hostile, "<|return|>")
    assert found.reason == "stop_not_in_gap"


async def test_with_glm_the_next_turns_own_token_is_the_stop():
    renderer = renderer_of("trl/glm4moe")
    found = await find(finder_of(renderer), TOOL, "<|observation|>")
    assert found.ids is not None
    text = renderer.tokenizer.decode(list(found.ids), skip_special_tokens=False)
    assert "<|observation|>" not in text
    assert sign("t1") in text


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tail": []}, "empty_tail"),
        ({"tail": [assistant("x"), user("y")]}, "foreign_assistant"),
        ({"tail": [{"role": "user", "content": [{"type": "image_url"}]}]}, "media"),
        ({"tail": [user("so " + marker_text(3))]}, "marker_in_text"),
        ({"tail": [user("so " + marker_text(0))]}, "marker_in_text"),
    ],
)
async def test_what_can_not_be_continued_is_refused(change, reason):
    found = await find(finder_of(renderer_of("trl/qwen3")), replace(TEXT, **change), "<|im_end|>")
    assert (found.ids, found.reason) == (None, reason)


async def test_marker_text_in_the_history_does_no_harm():
    renderer = renderer_of("trl/qwen3")
    talk = replace(TEXT, history=[user(marker_text(0) + marker_text(1))])
    found = await find(finder_of(renderer), talk, "<|im_end|>")
    assert found.ids == whole(renderer, talk)[-len(found.ids or ()) :]


async def test_a_tokenizer_without_stable_words_is_never_spliced():
    class Shifting(JinjaRenderer):
        def ids(self, text: str) -> array:
            plain = super().ids(text)
            return array("I", [token + 5000 * (i % 7) for i, token in enumerate(plain)])

    finder = finder_of(Shifting(template("trl/qwen3"), toy_tokenizer("byte")))
    with capture_logs() as logs:
        reasons = [(await find(finder, TEXT, "<|im_end|>")).reason for _ in range(2)]
    assert reasons == ["no_markers"] * 2
    assert len(logs) == 1


class Refusing(JinjaRenderer):
    """A template that a server refuses with 400."""

    async def render(self, *args, **kwargs) -> array:
        raise RenderRejected(400, "Unexpected message role.")


async def test_messages_that_the_engine_refuses_are_left_to_the_caller():
    finder = finder_of(Refusing(template("trl/qwen3"), toy_tokenizer("byte")))
    found = await find(finder, TEXT, "<|im_end|>")
    assert (found.ids, found.reason) == (None, "rejected")
    assert finder.counts["refused_rejected"] == 1


async def test_a_system_message_that_the_template_refuses_is_moved_into_user_text():
    renderer = renderer_of("trl/qwen3_5_think")
    talk = SHAPES["18_system_in_tail"]
    found = await find(finder_of(renderer), talk, "<|im_end|>")
    assert found.repaired
    assert found.ids is not None
    tail = repaired(talk.tail, leading=False)
    assert tail == [user(sign("s2") + "\n\n" + sign("u2"))]
    assert whole(renderer, replace(talk, tail=tail))[-len(found.ids) :] == found.ids


async def test_an_engine_that_fails_is_not_taken_for_a_refusal():
    class Gone(JinjaRenderer):
        async def render(self, *args, **kwargs) -> array:
            raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        await find(finder_of(Gone(template("trl/qwen3"), toy_tokenizer("byte"))), TEXT, 1)


# -- edits ---------------------------------------------------------------------------------------


async def test_tools_that_move_to_the_last_user_message_are_an_edit():
    talk = SHAPES["23_system_tools_text_user"]
    found = await find(finder_of(renderer_of("mistral/v7")), talk, "<|EOS|>")
    assert (found.verdict, found.reason) == ("semantic", "template_edits")


async def test_dropped_reasoning_is_an_edit_unless_the_run_keeps_reasoning():
    renderer = renderer_of("trl/qwen3")
    talk = SHAPES["07_reasoning_text_user"]
    finder = finder_of(renderer)
    as_sent = await find(finder, talk, "<|im_end|>")
    assert (as_sent.ids, as_sent.reason) == (None, "template_edits")
    kept = await find(finder, talk, "<|im_end|>", keep_reasoning=True)
    assert kept.verdict == "semantic"
    assert kept.ids is not None
    assert whole(renderer, talk)[-len(kept.ids) :] == kept.ids


async def test_keeping_reasoning_overrules_no_other_edit():
    both = Conversation(
        "both",
        [user(sign("u1"))],
        assistant(sign("a1"), sign("r1"), [call(0, {"city": sign("c1")})]),
        [result(sign("t1"))],
        True,
    )
    finder = finder_of(renderer_of("trl/llama3_1"))
    found = await find(finder, both, "<|eot_id|>", keep_reasoning=True)
    assert found.reason == "template_edits"


async def test_edits_of_the_templates_own_early_text_are_recorded_or_refused():
    thinks = assistant("", "", [call(0, {"city": sign("c1")})])
    talk = Conversation(
        "early", [user(sign("u1")), thinks, result(sign("t1"))], assistant(sign("a1")),
        [user(sign("u2"))], True,
    )  # fmt: skip
    renderer = renderer_of("trl/qwen3_5_think")
    truth = oracle.tell(renderer, talk, {})
    assert truth.edit == "early_text"
    found = await find(finder_of(renderer), talk, "<|im_end|>")
    assert (found.verdict, found.ids) == ("early_text", truth.suffix)
    strict = await find(finder_of(renderer, strict=True), talk, "<|im_end|>")
    assert (strict.ids, strict.reason) == (None, "template_edits")


# -- audits --------------------------------------------------------------------------------------

LOOKS_AT_WORDS = ChatTemplate(
    "own/looks_at_words",
    """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- endfor %}{{ '<|im_start|>assistant\n' }}
    {%- if 'please' in messages[0].content %}{{ '<think>\n' }}{% endif %}""",
)


async def test_one_failed_audit_ends_splicing_for_a_structure_and_says_so():
    renderer = JinjaRenderer(LOOKS_AT_WORDS, toy_tokenizer("byte"))
    finder = finder_of(renderer)
    polite = replace(TEXT, history=[user("please " + sign("u1"))])
    stop = renderer.id_of("<|im_end|>")

    plain = await find(finder, TEXT, stop)
    assert plain.audit
    assert finder.check_audit(plain, whole(renderer, TEXT), stop)
    found = await find(finder, polite, stop)
    assert found.audit
    with capture_logs() as logs:
        assert not finder.check_audit(found, whole(renderer, polite), stop)
    assert [(entry["log_level"], entry["structure"]) for entry in logs] == [
        ("error", found.signature.hex())
    ]
    assert finder.n_quarantined == 1
    again = await find(finder, TEXT, stop)
    assert (again.ids, again.reason) == (None, "quarantined")
    other = replace(TEXT, history=[system(sign("s")), *TEXT.history])
    assert (await find(finder, other, stop)).ids is not None


async def test_the_first_three_of_a_structure_are_audited_and_a_share_of_the_rest():
    renderer = renderer_of("trl/qwen3")
    finder = finder_of(renderer, audit_share=0.25)
    audits = [(await find(finder, TEXT, "<|im_end|>")).audit for _ in range(203)]
    assert audits[:3] == [True] * 3
    assert 30 <= sum(audits[3:]) <= 70
    never = finder_of(renderer, audit_share=0.0, audit_first=0)
    assert not (await find(never, TEXT, "<|im_end|>")).audit


async def test_tags_in_texts_make_no_new_structure_to_audit():
    finder = finder_of(renderer_of("trl/qwen3"), audit_share=0.0)
    audits = []
    for tag in ("<a>", "<b>", "<i>", "<u>"):
        talk = replace(TOOL, tail=[result(f"{tag} {sign('t1')}")])
        audits.append((await find(finder, talk, "<|im_end|>")).audit)
    assert audits == [True, True, True, False]
    assert finder.counts["probes"] == 4


# -- remembering and sharing ---------------------------------------------------------------------


async def test_a_structure_is_asked_for_once_whatever_its_ids_and_words():
    renderer = renderer_of("trl/llama3_1")
    finder = finder_of(renderer, audit_first=0)
    for place in range(5):
        talk = Conversation(
            "other", [user(f"question {place} " + sign("u1"))],
            assistant("", calls=[call(place, {"cmd": f"ls {place}"}, "run_sh")]),
            [result(f"answer {place}", place, "run_sh")], True,
        )  # fmt: skip
        found = await find(finder, talk, "<|eot_id|>")
        assert found.ids is not None
        assert whole(renderer, talk)[-len(found.ids) :] == found.ids
    assert finder.counts["probes"] == 1
    assert finder.counts["renders"] == 3 + 5


async def test_other_tools_or_template_arguments_are_another_structure():
    finder = finder_of(renderer_of("trl/qwen3"))
    await find(finder, TEXT, "<|im_end|>")
    await find(finder, replace(TEXT, with_tools=True), "<|im_end|>")
    arguments = {"chat_template_kwargs": {"enable_thinking": False}}
    await find(finder, TEXT, "<|im_end|>", arguments=arguments)
    assert finder.counts["probes"] == 3


async def test_only_so_many_verdicts_are_remembered():
    finder = finder_of(renderer_of("trl/qwen3"), cache_size=1)
    for talk in (TEXT, TOOL, TEXT, TEXT):
        assert (await find(finder, talk, "<|im_end|>")).ids is not None
    assert finder.counts["probes"] == 3


class Held(JinjaRenderer):
    """Renders only when `gate` is open; `asked` is set by the first question."""

    def __init__(self) -> None:
        super().__init__(template("trl/qwen3"), toy_tokenizer("byte"))
        self.gate, self.asked = asyncio.Event(), asyncio.Event()

    async def render(self, *args, **kwargs) -> array:
        self.asked.set()
        await self.gate.wait()
        return await super().render(*args, **kwargs)


async def test_calls_with_the_same_unseen_structure_share_one_probe():
    renderer = Held()
    finder = finder_of(renderer)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(find(finder, TEXT, "<|im_end|>")) for _ in range(4)]
        await renderer.asked.wait()
        renderer.gate.set()
    assert len({task.result().ids.tobytes() for task in tasks if task.result().ids}) == 1
    assert finder.counts["probes"] == 1
    assert finder.counts["spliced"] == 4


async def test_a_call_outlives_the_one_whose_probe_it_waits_for():
    renderer = Held()
    finder = finder_of(renderer)
    first = asyncio.ensure_future(find(finder, TEXT, "<|im_end|>"))
    await renderer.asked.wait()
    second = asyncio.ensure_future(find(finder, TEXT, "<|im_end|>"))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    renderer.gate.set()
    assert (await second).ids is not None


# -- size, and the toy engine --------------------------------------------------------------------


def long_session(n_cycles: int) -> Conversation:
    messages = [system("be brief " * 50), user("go on " * 50)]
    for place in range(n_cycles):
        messages.append(assistant("", "hm " * 20, [call(place, {"cmd": "ls " * 30}, "run_sh")]))
        messages.append(result("file <b>x</b>\n" * 300, place, "run_sh"))
    reply = assistant("", "so", [call(n_cycles, {"cmd": "pwd"}, "run_sh")])
    return Conversation("long", messages, reply, [result("/tmp", n_cycles, "run_sh")], True)


async def test_what_is_rendered_does_not_grow_with_the_conversation():
    class Measured(JinjaRenderer):
        n_tokens = 0

        async def render(self, *args, **kwargs) -> array:
            ids = await super().render(*args, **kwargs)
            self.n_tokens += len(ids)
            return ids

    renderer = Measured(template("trl/qwen3"), toy_tokenizer("byte"))
    sizes = []
    for n_cycles in (10, 300):
        renderer.n_tokens = 0
        found = await find(finder_of(renderer), long_session(n_cycles), "<|im_end|>")
        assert found.ids is not None
        sizes.append(renderer.n_tokens)
    assert sizes[1] < sizes[0] * 1.05


async def test_the_toy_engines_tokenizer_without_word_boundaries_is_spliced():
    tokenizer = ToyTokenizer(adversarial=True)

    class Toy:
        async def render(self, messages, tools, template, add_generation_prompt=True) -> array:
            text = render(messages, tools, add_generation_prompt=add_generation_prompt)
            return array("I", tokenizer.encode(text))

        async def tokenize(self, text: str) -> array:
            return array("I", tokenizer.encode(text))

    toy = Toy()
    for talk in (TEXT, TOOL, SHAPES["04_system_parallel"], SHAPES["14_long_chain"]):
        found = await SuffixFinder(toy, rng=random.Random(1)).find(
            talk.history, talk.reply, talk.tail, tokenizer.end_id, talk.tools, {}
        )
        assert found.ids is not None, found
        full = await toy.render([*talk.history, talk.reply, *talk.tail], talk.tools, {})
        assert full[-len(found.ids) :] == found.ids
