"""HTTP as attackers and broken clients speak it, over bare sockets."""

import asyncio
import contextlib
import gzip
import json
import zlib

import pytest
from structlog.testing import capture_logs

from budwood.proxy.testing import Reply
from budwood.trajectory_store import CallState

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
FINE = Reply(content="fine")


def request(path: str, body: bytes = BODY, *headers: str, method: str = "POST", **options) -> bytes:
    lines = [f"{method} {path} {options.get('version', 'HTTP/1.1')}", "Host: proxy", *headers]
    if options.get("length", True):
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


async def exchange(url: str, data: bytes, *, until: bytes | None = None) -> bytes:
    """Send bytes, read until the server closes, or has said `until`."""
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionResetError):
                return await (reader.readuntil(until) if until else reader.read())
        return b""
    finally:
        writer.close()


def status_and_error(answer: bytes) -> tuple[int, dict]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


NOT_ONE_REQUEST = {
    "a length and chunks": ((b"0\r\n\r\n", "Transfer-Encoding: chunked"), {}),
    "two lengths": ((BODY, "Content-Length: 5"), {}),
    "a negative length": ((b"", "Content-Length: -1"), {"length": False}),
    "an unknown transfer encoding": ((BODY, "Transfer-Encoding: xchunked"), {"length": False}),
    "a bad chunk": ((b"zz\r\nabc\r\n", "Transfer-Encoding: chunked"), {"length": False}),
    "a 64 kB header": ((BODY, "X: " + "a" * 65_536), {}),
    "300 headers": ((BODY, *(f"X{n}: a" for n in range(300))), {}),
    "a folded header": ((BODY, "X-A: b\r\n c: d"), {}),
    "a bare line feed": ((BODY, "X-A: b\nX-B: c"), {}),
    "a control character": ((BODY, "User-Agent: a\x00b"), {}),
    "a space before the colon": ((BODY, "Content-Length : 5"), {}),
    "an unknown version": ((BODY,), {"version": "HTTP/9.9"}),
    "an unknown method": ((BODY,), {"method": "BREW"}),
    "a method of odd characters": ((BODY,), {"method": "get!"}),
}


TOO_MUCH_HEAD = ("a 64 kB header", "300 headers")


@pytest.mark.parametrize("kind", NOT_ONE_REQUEST)
async def test_what_is_not_one_http_request_is_refused_in_the_dialects_shape(
    proxied, kind, caplog, capfd
):
    parts, options = NOT_ONE_REQUEST[kind]
    async with proxied([]) as (proxy, engine):
        rollout = await proxy.open_rollout()
        path = f"/r/{rollout.secret}/v1/chat/completions"
        with capture_logs() as logs:
            answer = await exchange(proxy.url, request(path, *parts, **options))
        status, error = status_and_error(answer)
        assert status == (431 if kind in TOO_MUCH_HEAD else 400)
        assert error["type"] == "invalid_request_error"
        told = answer.decode() + caplog.text + str(logs) + "".join(capfd.readouterr())
        assert rollout.secret not in told
        assert "Traceback" not in told
        assert engine.stats.calls == 0
        assert proxy.store.calls(rollout.id) == []


async def test_a_broken_request_to_the_admin_plane_does_not_show_its_key(proxied, caplog):
    async with proxied([]) as (proxy, _):
        secret = proxy.running.admin_secret
        bad = request("/metrics", b"", f"Authorization: Bearer {secret}\x00", method="GET")
        with capture_logs() as logs:
            answer = await exchange(proxy.admin_url, bad)
        assert answer.split()[1] == b"400"
        assert secret not in answer.decode() + caplog.text + str(logs)


async def test_connections_that_do_not_finish_a_head_are_closed(proxied):
    async with proxied([FINE], head_s=0.3) as (proxy, _):
        rollout = await proxy.open_rollout()
        port = int(proxy.url.rpartition(":")[2])

        async def drip(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answer = asyncio.ensure_future(reader.read())
            with contextlib.suppress(ConnectionError):
                for n in range(len(data)):
                    writer.write(data[n : n + 1])
                    await asyncio.wait([answer], timeout=0.02)
                    if answer.done():
                        break
            writer.close()
            try:
                return await answer
            except ConnectionResetError:
                return b""

        path = f"/r/{rollout.secret}/v1/chat/completions"
        async with asyncio.timeout(60):
            slow = [drip(request(path)) for _ in range(20)]
            silent = [drip(b"") for _ in range(5)]
            assert set(await asyncio.gather(*slow, *silent)) == {b""}


async def test_a_body_that_does_not_arrive_gets_408(proxied):
    async with proxied([], body_s=0.2) as (proxy, _):
        rollout = await proxy.open_rollout()
        path = f"/r/{rollout.secret}/v1/chat/completions"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(proxy.url.rpartition(":")[2])
        )
        writer.write(request(path, BODY)[:-5])
        async with asyncio.timeout(60):
            answer = await reader.readuntil(b"}}")
        status, error = status_and_error(answer)
        assert (status, error["type"]) == (408, "timeout_error")
        writer.close()
        assert proxy.store.calls(rollout.id) == []


async def test_a_connection_may_idle_between_requests_longer_than_a_head_may_take(proxied):
    async with proxied([FINE, FINE], head_s=0.2) as (proxy, _):
        rollout = await proxy.open_rollout()
        path = f"/r/{rollout.secret}/v1/chat/completions"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(proxy.url.rpartition(":")[2])
        )
        writer.write(request(path))
        await reader.readuntil(b"}}}")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(reader.read(1))), 0.5)
        writer.close()


async def test_pipelined_requests_are_answered_in_order_past_a_bad_one(proxied):
    async with proxied([FINE, FINE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        path = f"/r/{rollout.secret}/v1/chat/completions"
        data = request(path) + request(path, b"{") + request(path, BODY, "Connection: close")
        answer = await exchange(proxy.url, data)
        assert answer.count(b"HTTP/1.1 200") == 2
        assert answer.count(b"HTTP/1.1 400") == 1
        assert answer.index(b"HTTP/1.1 400") > answer.index(b"HTTP/1.1 200")
        await proxy.settled()
        states = {call.state for call in proxy.store.calls(rollout.id)}
        assert states == {CallState.DELIVERED}


async def test_too_large_a_body_is_refused_before_it_is_read(proxied):
    async with proxied([], max_body_mib=1) as (proxy, _):
        rollout = await proxy.open_rollout()
        head = request(f"/r/{rollout.secret}/v1/chat/completions", b"", length=False)
        head = head.replace(b"\r\n\r\n", b"\r\nContent-Length: 50000000\r\n\r\n")
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(proxy.url.rpartition(":")[2])
        )
        writer.write(head)
        async with asyncio.timeout(60):
            answer = await reader.readuntil(b"\r\n")
        assert answer.split()[1] == b"413"
        writer.close()


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(proxied):
    async with proxied([FINE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        path = f"/r/{rollout.secret}/v1/chat/completions"
        whole = request(path, BODY, "Expect: 100-continue", "Connection: close")
        port = int(proxy.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(60):
            writer.write(whole.removesuffix(BODY))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(BODY)
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"]
        writer.close()


async def test_a_client_that_is_refused_is_not_asked_for_its_body(proxied):
    async with proxied([]) as (proxy, _):
        path = "/r/bw_nobody/v1/chat/completions"
        head = request(path, BODY, "Expect: 100-continue", "Connection: close").removesuffix(BODY)
        assert status_and_error(await exchange(proxy.url, head, until=b"}}"))[0] == 401
        rollout = await proxy.open_rollout()
        path = f"/r/{rollout.secret}/v1/chat/completions"
        head = request(path, BODY, "Expect: a-miracle", "Connection: close").removesuffix(BODY)
        assert status_and_error(await exchange(proxy.url, head, until=b"}}"))[0] == 417


async def test_a_stream_in_http_1_0_ends_with_its_connection(proxied):
    async with proxied([FINE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        body = BODY[:-1] + b',"stream":true}'
        path = f"/r/{rollout.secret}/v1/chat/completions"
        answer = await exchange(proxy.url, request(path, body, version="HTTP/1.0"))
        head, _, events = answer.partition(b"\r\n\r\n")
        assert head.split()[1] == b"200"
        assert b"chunked" not in head.lower()
        assert events.startswith(b"data: {")
        assert events.endswith(b"data: [DONE]\n\n")
        await proxy.settled()
        (call,) = proxy.store.calls(rollout.id)
        assert call.state is CallState.DELIVERED


async def test_encodings_on_several_lines_are_one_list(proxied):
    async with proxied([FINE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        path = f"/r/{rollout.secret}/v1/chat/completions"
        encodings = ("Content-Encoding: gzip", "Content-Encoding: deflate", "Connection: close")
        body = zlib.compress(gzip.compress(BODY))
        answer = await exchange(proxy.url, request(path, body, *encodings))
        assert answer.split()[1] == b"200"


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/r/{secret}/v1/chat/completions", "GET", 405),
        ("/r/{secret}/v1/chat/completions", "OPTIONS", 405),
        ("/r/{secret}/v1/chat/completions/", "POST", 404),
        ("/r/{secret}/../../v1/chat/completions", "POST", 404),
        ("/r/{secret}/v1/x/../chat/completions", "POST", 404),
        ("/r/%ff%fe%zz/v1/chat/completions", "POST", 401),
        ("/r/%00/v1/chat/completions", "POST", 401),
        ("/v1/chat/completions?key=%ff&%&&==", "POST", 401),
        ("/v1/some-model", "POST", 404),
        ("/v1/models", "POST", 405),
        ("/health", "DELETE", 405),
        ("/admin/rollouts", "POST", 404),
        ("/metrics", "GET", 404),
    ],
)
async def test_odd_paths_and_methods_are_refused(proxied, path, method, status):
    async with proxied([]) as (proxy, _):
        rollout = await proxy.open_rollout()
        path = path.format(secret=rollout.secret)
        answer = await exchange(proxy.url, request(path, BODY, "Connection: close", method=method))
        found, error = status_and_error(answer)
        assert found == status
        assert rollout.secret not in str(error)


async def test_a_websocket_upgrade_of_the_chat_door_is_refused(proxied):
    async with proxied([]) as (proxy, _):
        rollout = await proxy.open_rollout()
        headers = ("Connection: Upgrade, close", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
                   "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")  # fmt: skip
        path = f"/r/{rollout.secret}/v1/chat/completions"
        answer = await exchange(proxy.url, request(path, b"", *headers, method="GET"))
        assert answer.split()[1] == b"405"


async def test_headers_of_other_bytes_than_ascii_do_no_harm(proxied):
    async with proxied([FINE]) as (proxy, _):
        rollout = await proxy.open_rollout()
        path = f"/r/{rollout.secret}/v1/chat/completions"
        headers = ("User-Agent: \xff\xfe", "Authorization: Bearer \xff", "Connection: close")
        answer = await exchange(proxy.url, request(path, BODY, *headers))
        assert answer.split()[1] == b"200"
        await proxy.settled()
        (call,) = proxy.store.calls(rollout.id)
        assert call.state is CallState.DELIVERED


async def test_a_client_that_leaves_is_no_fault_of_ours(proxied):
    def stream(_call):
        return Reply(content="word " * 400, delay_ms=1)

    async with proxied(stream) as (proxy, _):
        with capture_logs() as logs:
            for _ in range(10):
                rollout = await proxy.open_rollout()
                port = int(proxy.url.rpartition(":")[2])
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                path = f"{rollout.base_url.removeprefix(proxy.url)}/chat/completions"
                writer.write(request(path, BODY[:-1] + b',"stream":true}'))
                for _piece in range(5):
                    await reader.readuntil(b"\n\n")
                writer.transport.abort()
                async with asyncio.timeout(60):
                    await proxy.running.recorder.idle()
                (call,) = proxy.store.calls(rollout.id)
                assert (call.state, call.cause) == (CallState.ABORTED, "client_gone")
        assert [entry for entry in logs if entry["log_level"] == "error"] == []
