"""The probe finds out by asking, and doctor says what to do about it."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from budwood.cli import app
from budwood.proxy.engine import ADVICE, Engine, EngineSettings, Problem, RenderRefused
from budwood.proxy.engine.checks import State, check_engine, check_machine, engine_findings
from budwood.proxy.engine.probe import end_ids
from budwood.proxy.testing import ScriptedEngine


async def _probe(engine, **settings):
    async with Engine(EngineSettings(urls=(engine.url,), **settings)) as client:
        return await client.probe()


async def test_an_engine_with_all_flags_has_no_problem():
    async with ScriptedEngine() as engine:
        info = await _probe(engine)
        assert engine.calls == []
    assert info.problems == ()
    assert info.is_exact
    assert info.way_in == "kv_transfer"
    assert info.can_generate
    assert info.max_model_len == 131_072
    assert info.template_hash
    assert info.tokenizer_hash


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"raw_logprobs": True}, Problem.RAW_LOGPROBS),
        ({"scale_out": False}, Problem.RENDER_DISABLED),
        ({"tool_parser": False}, Problem.NO_TOOL_PARSER),
        ({"token_in": "ignored", "scale_out": False}, Problem.TOKEN_IN_IGNORED),
        ({"as_vllm": False}, Problem.NOT_VLLM),
    ],
)
async def test_a_missing_flag_is_a_problem_with_advice(options, problem):
    async with ScriptedEngine(**options) as engine:
        info = await _probe(engine)
        findings = await check_engine(EngineSettings(urls=(engine.url,)))
    assert problem in info.problems
    assert info.is_exact is not ADVICE[problem].fatal
    told = [found for found in findings if found.what_to_do == ADVICE[problem].what_to_do]
    assert [found.state for found in told] == [
        State.FAILED if ADVICE[problem].fatal else State.WARNING
    ]


async def test_tokenize_renders_where_the_render_route_is_off():
    async with ScriptedEngine(scale_out=False) as engine:
        async with Engine(EngineSettings(urls=(engine.url,))) as client:
            info = await client.probe()
            assert info.render_route == "tokenize"
            ids = await client.render([{"role": "user", "content": "x"}], None, {})
    assert engine.tokenizer.decode(ids).endswith("<|im_start|>assistant\n")


async def test_a_wish_for_a_way_that_is_not_honoured_is_a_problem():
    async with ScriptedEngine() as engine:
        info = await _probe(engine, way="chat_prompt_token_ids")
    assert info.way_in == "chat_prompt_token_ids"
    assert Problem.TOKEN_IN_IGNORED in info.problems


async def test_template_and_tokenizer_have_digests_of_their_behaviour():
    async with ScriptedEngine() as one, ScriptedEngine(template="{{ messages }}") as two:
        first, second = await _probe(one), await _probe(two)
    assert first.tokenizer_hash == second.tokenizer_hash
    assert first.template_hash != second.template_hash


async def test_a_model_that_is_not_served_is_named():
    async with ScriptedEngine() as engine:
        findings = await check_engine(EngineSettings(urls=(engine.url,), model="other"))
    assert findings[0].state is State.FAILED
    assert "scripted" in findings[0].found


def test_end_ids_come_from_the_model_s_own_files(tmp_path):
    assert end_ids(str(tmp_path)) == frozenset()
    assert end_ids("org/name") == frozenset()
    (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    assert end_ids(str(tmp_path)) == {3, 5}


def test_every_problem_has_advice_and_is_checked():
    assert set(ADVICE) == set(Problem)


async def test_a_render_that_the_template_refuses_says_so():
    async with ScriptedEngine(template="{{ raise_exception('no') }}", scale_out=True) as engine:
        async with Engine(EngineSettings(urls=(engine.url,))) as client:
            info = await client.probe()
            assert not info.can_render
    async with ScriptedEngine() as engine:
        async with Engine(EngineSettings(urls=(engine.url,))) as client:
            await client.probe()
            bad = {"id": "c", "function": {"name": "f", "arguments": "{not json"}}
            with pytest.raises(RenderRefused) as rejected:
                await client.render([{"role": "assistant", "tool_calls": [bad]}], None, {})
    assert rejected.value.status == 400


async def test_health_is_whether_any_replica_answers():
    async with ScriptedEngine() as engine:
        settings = EngineSettings(urls=("http://127.0.0.1:1", engine.url), connect_s=1)
        async with Engine(settings) as client:
            assert await client.is_healthy()
    async with Engine(settings) as client:
        assert not await client.is_healthy()


def test_the_machine_is_checked(tmp_path):
    names = {found.name for found in check_machine(ports=(0,), store=tmp_path / "x.db")}
    assert {"python", "disk", "store folder", "vllm", "uv", "node", "port 0"} == names


def test_a_store_on_a_server_has_no_folder_here():
    names = {found.name for found in check_machine(ports=())}
    assert "store folder" not in names
    assert "disk" in names


def _doctor(*words):
    result = CliRunner().invoke(app, ["doctor", "--json", *words])
    rows = json.loads(result.output)["findings"]
    return {row["check"]: (row["state"], row["found"]) for row in rows}


def test_doctor_looks_at_the_place_of_the_store(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("BUDWOOD_STORE__URL", str(tmp_path / "here" / "x.db"))
    found = _doctor()
    assert found["store folder"] == ("ok", f"{tmp_path / 'here'} can be written")
    assert found["disk"][1].endswith(f"in {tmp_path / 'here'}")
    there = tmp_path / "not" / "yet"
    found = _doctor("--store", f"sqlite:///{there}/x.db")
    assert found["store folder"] == ("ok", f"{there} can be made in {tmp_path}")
    (tmp_path / "file").write_text("")
    state, said = _doctor("--store", str(tmp_path / "file" / "x.db"))["store folder"]
    assert state == "failed"
    assert str(tmp_path / "file") in said
    state, said = _doctor("--store", str(tmp_path / "here"))["store folder"]
    assert (state, said) == ("failed", f"{tmp_path / 'here'} is no file that can be written")
    monkeypatch.setenv("BUDWOOD_STORE__URL", "postgresql+psycopg://me@127.0.0.1:1/budwood")
    assert "store folder" not in _doctor()


def test_doctor_names_a_store_that_cannot_be():
    result = CliRunner().invoke(app, ["doctor", "--store", "mysql://me@127.0.0.1/x"])
    assert result.exit_code == 2
    assert "SQLite or PostgreSQL is wanted" in result.output
    result = CliRunner().invoke(app, ["doctor", "--store", "no url://x"])
    assert result.exit_code == 2
    assert "a store is a path or postgresql://" in result.output


def test_findings_name_each_check_once():
    async def run():
        async with ScriptedEngine() as engine:
            return engine_findings(await _probe(engine))

    found = asyncio.run(run())
    assert len({f.name for f in found}) == len(found)


async def test_doctor_exits_1_where_exact_recording_is_impossible():
    async with ScriptedEngine() as good, ScriptedEngine(as_vllm=False) as bad:
        for engine, code in ((good, 0), (bad, 1)):
            result = await asyncio.to_thread(
                CliRunner().invoke, app, ["doctor", "--engine", engine.url, "--json"]
            )
            assert result.exit_code == code, result.output
            told = json.loads(result.output)
            assert told["ok"] is (code == 0)
            assert {row["about"] for row in told["findings"]} == {"engine", "machine"}


def test_doctor_exits_1_where_the_engine_asked_for_does_not_answer():
    result = CliRunner().invoke(app, ["doctor", "--engine", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "budwood engine" in result.output
    assert "Connection refused" in result.output
    assert result.output.count("127.0.0.1") == 1


async def test_doctor_says_where_a_version_is_not_known():
    async with ScriptedEngine(as_vllm=False) as engine:
        findings = await check_engine(EngineSettings(urls=(engine.url,)))
    assert f"{engine.url}: openai of unknown version serves scripted, " in findings[0].found
