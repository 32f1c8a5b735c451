"""`budwood proxy` as a process: settings reach it, and it ends in order."""

import asyncio
import json
import os
import sys

import aiohttp

from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.trajectory_store import Store


async def _listening(process) -> dict:
    async with asyncio.timeout(60):
        while line := await process.stderr.readline():
            event = json.loads(line)
            if event.get("event") == "proxy listening":
                return event
    raise AssertionError("the proxy ended before it listened")


async def _chat(url: str, text: str) -> int:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": "Bearer sk-somebody"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/v1/chat/completions", json=body) as answer,
    ):
        return answer.status


async def test_engines_and_secrets_of_the_settings_reach_the_proxy(tmp_path):
    replies = lambda _call: Reply(content="Hello.")  # noqa: E731
    async with ScriptedEngine(replies) as one, ScriptedEngine(replies) as two:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "budwood", "proxy", "--open", "--port", "0"),
            *("--admin-port", "0", "--engine", f"{one.url},{two.url}"),
            *("--store", str(tmp_path / "store.db")),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "BUDWOOD_STORE__SECRETS": '["hunter22hunter"]'},
        )
        try:
            listening = await _listening(process)
            assert await _chat(listening["url"], "the word is hunter22hunter") == 200
            assert await _chat(listening["url"], "nothing to hide") == 200
        finally:
            process.terminate()
            async with asyncio.timeout(60):
                await process.communicate()
        assert process.returncode == 0
    with Store.open(tmp_path / "store.db", read_only=True) as store:
        (rollout,) = store.rollouts()
        assert ["secret" in call.flags for call in store.calls(rollout.id)] == [True, False]
