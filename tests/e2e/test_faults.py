"""Each fault ends as its own class and cause; no client takes it for an answer, no row trains."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from sqlalchemy import event

from budwood.proxy.engine import EngineSettings
from budwood.proxy.testing import Reply, ScriptedEngine
from budwood.proxy.testing.running import OpenedRollout, TestProxy, proxy_for_tests
from budwood.trajectory_store import CallState, FailureClass, Store

ALL_LANES = ("main", "sub-agent", "side")
GOOD = Reply(content="The whole answer, in a dozen tokens or so.", reasoning="I think.")
USER: Any = {"role": "user", "content": "Go."}
LEFT_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Door:
    """A proxy before an engine that shows a fault."""

    proxy: TestProxy
    engine: ScriptedEngine
    rollout: OpenedRollout

    @property
    def store(self) -> Store:
        return self.proxy.store

    def sdk(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.rollout.base_url, api_key="-", max_retries=0)

    async def call(self, *, stream: bool) -> None:
        """One call by the SDK, to its end; raises what the SDK raises."""
        async with self.sdk() as sdk:
            if not stream:
                await sdk.chat.completions.create(model="m", messages=[USER])
                return
            async for _ in await sdk.chat.completions.create(
                model="m",
                messages=[USER],
                stream=True,
            ):
                pass

    async def raw(self, *, stream: bool) -> bytes:
        """The bytes that a bare socket gets until the server closes or the answer ends."""
        reader, writer = await self.send(stream=stream)
        async with asyncio.timeout(LEFT_WITHIN_S):
            data = await reader.read()
        writer.close()
        return data

    async def send(self, *, stream: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which a call has been asked for."""
        parts = urlsplit(self.rollout.base_url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        body = json.dumps({"model": "m", "messages": [USER], "stream": stream}).encode()
        writer.write(
            f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        return reader, writer

    def nothing_is_good(self) -> None:
        """No row of the rollout trains anything."""
        assert (
            sum(row.n_trained for row in self.store.sequences(self.rollout.id, lanes=ALL_LANES))
            == 0
        )


@pytest.fixture
def door(tmp_path):
    """A context manager: `async with door(reply) as door`; every call of a harness gets `reply`."""

    @asynccontextmanager
    async def opened(reply: Reply, *, busy_s: float = 10.0, **engine: Any) -> AsyncIterator[Door]:
        def script(call):
            is_probe = call.body.get("max_tokens") == 1
            return Reply(content="probe") if is_probe else reply

        with Store.open(tmp_path / "store.db", busy_s=busy_s) as store:
            async with ScriptedEngine(script) as scripted:
                patience = {"tries": 2, "backoff_min_s": 0.0, "backoff_max_s": 0.01, **engine}
                settings = EngineSettings(urls=(scripted.url,), **patience)
                async with proxy_for_tests(scripted.url, store, engine=settings) as proxy:
                    yield Door(proxy, scripted, await proxy.open_rollout())

    return opened


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until something is so."""
    async with asyncio.timeout(LEFT_WITHIN_S):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


def is_clean_end(data: bytes, *, stream: bool) -> bool:
    """Whether a client would take this for a whole answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        return False
    if stream:
        return b"data: [DONE]" in body or b'"finish_reason":"stop"' in body
    return b'"choices"' in body


STREAMED_FAULTS = [
    ("status@429", "rate_limited"),
    ("status@500", "server_error"),
    ("drop@5", "cut"),
    ("reset@5", "cut"),
    ("badjson@5", "bad_event"),
    ("nodone", "missing_done"),
    ("nofinish", "missing_finish"),
    ("stall@5", "stall"),
    ("error@5", "server_error"),
    ("noids@5", "count_mismatch"),
    ("badid@3", "bad_event"),
    ("badtext@3", "bad_event"),
    ("garbage", "unreachable"),
]
PLAIN_FAULTS = [
    ("status@429", "rate_limited"),
    ("status@500", "server_error"),
    ("drop@5", "cut"),
    ("badjson@5", "bad_event"),
    ("nofinish", "missing_finish"),
    ("stall@5", "stall"),
    ("noids@5", "missing_ids"),
    ("badid@3", "bad_event"),
    ("badtext@3", "bad_event"),
    ("garbage", "unreachable"),
]
FAULTS = [(fault, cause, True) for fault, cause in STREAMED_FAULTS]
FAULTS += [(fault, cause, False) for fault, cause in PLAIN_FAULTS]


@pytest.mark.parametrize(("fault", "cause", "stream"), FAULTS)
async def test_a_fault_of_the_engine_is_its_own_cause_and_never_a_clean_end(
    door, fault, cause, stream
):
    reply = Reply(content=GOOD.content, reasoning=GOOD.reasoning, fault=fault)
    # Short only where the engine really stalls: a busy machine must not pass for a stall.
    limits = {"idle_s": 0.3, "first_byte_s": 0.3} if cause == "stall" else {}
    async with door(reply, **limits) as here:
        # A dialect error (a status, or an error event in a stream), or a broken connection.
        with pytest.raises((openai.APIError, httpx.TransportError)) as caught:
            await here.call(stream=stream)
        if isinstance(caught.value, openai.APIStatusError):
            assert caught.value.status_code == int(fault.partition("@")[2] or 502) or (
                caught.value.status_code in (502, 503, 504)
            )
            assert caught.value.body
        data = await here.raw(stream=stream)
        assert not is_clean_end(data, stream=stream)
        assert b"Traceback" not in data
        calls = here.store.calls(here.rollout.id)
        assert [call.state for call in calls] == [CallState.FAILED] * 2
        assert {(call.failure_class, call.cause) for call in calls} == {
            (FailureClass.ENGINE, cause)
        }
        here.nothing_is_good()


async def test_a_plain_call_that_the_engine_stalls_on_is_sent_once(door):
    async with door(Reply(content=GOOD.content, fault="stall@5"), first_byte_s=0.3) as here:
        n_before = here.engine.stats.calls
        with pytest.raises(openai.APIStatusError) as caught:
            await here.call(stream=False)
        assert caught.value.status_code == 502
        assert here.engine.stats.calls == n_before + 1


@pytest.mark.parametrize("fault", ["split", "crlf", "cr", "comment", "big@200000"])
async def test_odd_but_right_bytes_of_the_engine_are_no_fault(door, fault):
    async with door(Reply(content=GOOD.content, fault=fault)) as here:
        await here.call(stream=True)
        (call,) = here.store.calls(here.rollout.id)
        assert call.exact
        assert (call.failure_class, call.cause) == (FailureClass.NONE, None)


DOES_NOT_ADD_UP = ["dup@3", "sentinel@3", "nullprob@3", "wrongids", "nousage", "nologprobs@3"]


@pytest.mark.parametrize("fault", DOES_NOT_ADD_UP)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_does_not_add_up_is_never_trained(door, fault, stream):
    async with door(Reply(content=GOOD.content, fault=fault)) as here:
        if stream or fault != "dup@3":
            try:
                await here.call(stream=stream)
            except openai.APIError:
                (call,) = here.store.calls(here.rollout.id)
                assert call.failure_class is FailureClass.ENGINE
            else:
                (call,) = here.store.calls(here.rollout.id)
                assert not call.exact
                assert call.reasons
            here.nothing_is_good()


async def test_a_client_that_leaves_is_the_harness_and_ends_the_sampling(door):
    slow = Reply(content=GOOD.content, delay_ms=50)
    async with door(slow) as here:
        reader, writer = await here.send(stream=True)
        await reader.readuntil(b"data:")
        writer.transport.abort()
        await until(lambda: here.engine.stats.aborted == 1)
        await until(lambda: _states(here) == [CallState.ABORTED])
        (call,) = here.store.calls(here.rollout.id)
        assert (call.failure_class, call.cause) == (FailureClass.HARNESS, "client_gone")
        here.nothing_is_good()


def _states(here: Door) -> list[CallState]:
    return [call.state for call in here.store.calls(here.rollout.id)]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_locked_database_is_waited_for_and_is_the_store(door, tmp_path, stream):
    async with door(GOOD, busy_s=0.4) as here:
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(openai.APIError) as caught:
                await here.call(stream=stream)
            data = await here.raw(stream=stream)
            other.execute("ROLLBACK")
        await _is_the_stores_fault(here, caught.value, data, "store_busy", stream=stream)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_disk_is_the_store_and_heals_without_a_restart(door, stream):
    async with door(GOOD) as here:
        limit = [1]  # SQLite takes the pages in use for the least: not one more

        def limited(dbapi: Any, _: Any) -> None:
            dbapi.execute(f"PRAGMA max_page_count={limit[0]}")

        event.listen(here.store._database.writing, "connect", limited)
        # A break of the connection, as after any fault, makes the limit hold.
        here.store._writer._disconnect()  # pyright: ignore[reportOptionalMemberAccess]
        errors = []
        for _ in range(40):  # until what is left in the last pages is used up
            try:
                await here.call(stream=stream)
            except openai.APIError as error:
                errors.append(error)
                break
        assert errors, "the disk never got full"
        data = await here.raw(stream=stream)
        limit[0] = 2**30
        here.store._writer._disconnect()  # pyright: ignore[reportOptionalMemberAccess]
        await _is_the_stores_fault(here, errors[0], data, "store_full", stream=stream)


async def _is_the_stores_fault(
    here: Door, error: openai.APIError, data: bytes, cause: str, *, stream: bool
) -> None:
    if isinstance(error, openai.APIStatusError):
        assert error.status_code in (503, 507)
        assert error.response.headers.get("retry-after")
    else:
        assert stream
    assert not is_clean_end(data, stream=stream)
    good = [call for call in here.store.calls(here.rollout.id) if call.exact]
    await here.call(stream=stream)  # healed: recorded, and what was refused is recorded as failed

    def told() -> bool:
        return any(call.cause == cause for call in here.store.calls(here.rollout.id))

    await until(told)
    await here.proxy.settled()
    calls = here.store.calls(here.rollout.id)
    failed = [call for call in calls if call.cause == cause]
    assert {call.failure_class for call in failed} == {FailureClass.STORE}
    assert {call.state for call in failed} == {CallState.FAILED}
    assert len([call for call in calls if call.exact]) == len(good) + 1
    trained = sum(row.n_trained for row in here.store.sequences(here.rollout.id, lanes=ALL_LANES))
    assert trained == sum(call.n_out or 0 for call in calls if call.exact)


def test_every_fault_of_the_scripted_engine_is_in_a_table_here():
    from budwood.proxy.testing.scripted_faults import FAULTS as known

    here = {fault.partition("@")[0] for fault, _ in STREAMED_FAULTS}
    here |= {"split", "crlf", "cr", "comment", "big"}
    here |= {fault.partition("@")[0] for fault in DOES_NOT_ADD_UP}
    assert here | {"flaky"} == set(known)
