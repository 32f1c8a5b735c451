"""Who may read the pages."""

import asyncio
import contextlib

import aiohttp
import pytest

from budwood.trajectory_store.viewer import Access, ViewerError, create_app, serve
from budwood.trajectory_store.viewer.access import HEADERS


@pytest.fixture
async def viewer(store, aiohttp_server):
    """A running viewer: its way in."""
    access = Access.make("127.0.0.1", 0)
    server = await aiohttp_server(create_app(store, access))
    access.port = server.port
    return access


@pytest.fixture
async def reader():
    """A client that keeps cookies as a browser does."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


async def _status(session, url, method="GET", **headers):
    async with session.request(method, url, headers=headers, allow_redirects=False) as answer:
        return answer.status


async def test_a_page_needs_the_cookie_that_the_address_sets(viewer, reader):
    assert await _status(reader, viewer.origin) == 401
    async with reader.get(viewer.url, allow_redirects=False) as answer:
        assert answer.status == 303
        assert answer.headers["Location"] == "/"
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert viewer.token not in cookie
    assert await _status(reader, viewer.origin) == 200


@pytest.mark.parametrize(
    "line", [b"GET /open/TOKEN" + b"a" * 9000, b"\x16\x03\x01TOKEN", b"GET /open/TOKEN HTTP/9.9"]
)
async def test_what_is_no_request_is_told_to_nobody(store, line, capfd):
    ready = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(store, "127.0.0.1", 0, ready=ready.set_result))
    try:
        access = await ready
        browser, writer = await asyncio.open_connection("127.0.0.1", access.port)
        writer.write(line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = await browser.read()
        writer.close()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert answer.split()[1] == b"400"
    assert b"Content-Security-Policy" in answer
    told = answer.decode("latin-1") + "".join(capfd.readouterr())
    assert "TOKEN" not in told
    assert "Traceback" not in told


async def test_the_address_opens_once(viewer, reader):
    assert await _status(reader, viewer.url) == 303
    async with aiohttp.ClientSession() as other:
        assert await _status(other, viewer.url) == 403


async def test_a_given_token_opens_again(viewer, reader):
    viewer.is_given = True
    assert await _status(reader, viewer.url) == 303
    assert await _status(reader, viewer.url) == 303


async def test_a_wrong_token_opens_nothing_and_spends_nothing(viewer, reader):
    assert await _status(reader, f"{viewer.origin}/open/guess") == 403
    assert await _status(reader, f"{viewer.origin}/open/%C3%A9") == 403
    assert await _status(reader, viewer.url) == 303


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:{port}", "127.0.0.1:1"])
async def test_another_host_name_is_refused_with_and_without_the_cookie(viewer, reader, host):
    url, host = viewer.origin, host.format(port=viewer.port)
    assert await _status(reader, viewer.url, Host=host) == 403
    assert await _status(reader, viewer.url) == 303
    assert await _status(reader, url, Host=host) == 403


async def test_localhost_is_this_host(viewer, reader):
    assert await _status(reader, viewer.url) == 303
    cookie = "; ".join(f"{c.key}={c.value}" for c in reader.cookie_jar)
    assert (
        await _status(reader, viewer.origin, Host=f"localhost:{viewer.port}", Cookie=cookie) == 200
    )


async def test_another_origin_is_refused(viewer, reader):
    assert await _status(reader, viewer.url) == 303
    assert await _status(reader, viewer.origin, Origin="https://evil.example") == 403
    assert await _status(reader, viewer.origin, Origin="null") == 403
    assert await _status(reader, viewer.origin, Origin=viewer.origin) == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_can_be_changed(viewer, reader, method):
    assert await _status(reader, viewer.url) == 303
    assert await _status(reader, viewer.origin, method) == 405


@pytest.mark.parametrize(
    "path", ["/", "/style.css", "/nothing", "/call/ca_unknown", "/run/..%2f..%2fetc", "/open/x"]
)
async def test_every_answer_carries_the_strict_headers(viewer, reader, path):
    assert await _status(reader, viewer.url) == 303
    async with reader.get(viewer.origin + path) as answer:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script-src" not in policy


async def test_an_unknown_record_is_not_found_and_not_repeated(viewer, reader):
    assert await _status(reader, viewer.url) == 303
    async with reader.get(f"{viewer.origin}/call/ca_nosuchcall") as answer:
        assert answer.status == 404
        assert "ca_nosuchcall" not in await answer.text()


def test_an_address_that_others_reach_needs_a_token_of_the_users_own():
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ViewerError, match="BUDWOOD_VIEWER__TOKEN"):
            Access.make(host, 80)
    with pytest.raises(ViewerError, match="16 characters"):
        Access.make("0.0.0.0", 80, "short")
    assert Access.make("0.0.0.0", 80, "long enough to be a token").is_given


def test_a_public_address_answers_to_addresses_and_given_names_only():
    access = Access.make("0.0.0.0", 8802, "long enough to be a token", ("box.example",))
    assert access._is_ours("192.0.2.7:8802")
    assert access._is_ours("box.example:8802")
    assert not access._is_ours("evil.example:8802")
    assert not access._is_ours("192.0.2.7")


async def test_serving_prints_an_address_that_opens(store, reader):
    ready = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(store, "127.0.0.1", 0, ready=ready.set_result))
    access = await ready
    async with reader.get(access.url) as answer:
        assert answer.status == 200
        assert "examples" in await answer.text()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
