"""The admin plane: who may use it, what it refuses, and that harnesses can't reach it."""

import asyncio
import gzip
import io
import json

import aiohttp
import pytest

from budwood.proxy.testing import Reply

FINE = Reply(content="fine")
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def key(proxy) -> dict[str, str]:
    return {"Authorization": f"Bearer {proxy.running.admin_secret}"}


async def ask(url: str, method: str = "POST", **options) -> tuple[int, dict]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, **options) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if text.startswith("{") else {"text": text}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic eDp5"},
        {"Authorization": "Bearer \udcff"},
        {"x-api-key": "wrong"},
    ],
)
async def test_without_the_admin_secret_nothing_is_done(proxied, headers):
    async with proxied([]) as (proxy, _):
        for method, path in (
            ("POST", "/admin/rollouts"),
            ("POST", "/admin/policy"),
            ("GET", "/metrics"),
            ("GET", "/nothing"),
        ):
            encoded = {
                name.encode(): value.encode("utf-8", "surrogateescape")
                for name, value in headers.items()
            }
            lines = [b"%b: %b" % pair for pair in encoded.items()]
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode()
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", int(proxy.admin_url.rpartition(":")[2])
            )
            writer.write(b"\r\n".join([head + b"\r\n".join(lines)] if lines else [head[:-2]]))
            writer.write(b"\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"401"
            writer.close()
        assert proxy.store.rollouts() == []


async def test_a_rollouts_secret_opens_nothing_on_the_admin_plane(proxied):
    async with proxied([]) as (proxy, _):
        rollout = await proxy.open_rollout()
        headers = {"Authorization": f"Bearer {rollout.secret}"}
        status, _ = await ask(f"{proxy.admin_url}/admin/rollouts", headers=headers, json={})
        assert status == 401


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/admin/rollouts", b"{", 400),
        ("/admin/rollouts", b"[]", 400),
        ("/admin/rollouts", b'{"unknown":1}', 400),
        ("/admin/rollouts", b'{"attempt":-1}', 400),
        ("/admin/rollouts", b'{"attempt":1e30}', 400),
        ("/admin/rollouts", b'{"purpose":"fun"}', 400),
        ("/admin/rollouts", b'{"budgets":{"max_call":1}}', 400),
        ("/admin/rollouts", b'{"budgets":{"wall_s":NaN}}', 400),
        ("/admin/rollouts", b'{"labels":{"a":"\\ud800"}}', 400),
        ("/admin/rollouts", b'{"labels":{"a":NaN}}', 400),
        ("/admin/rollouts", b'{"labels":{"a":[-Infinity]}}', 400),
        ("/admin/rollouts", b'{"labels":{"a":' + b"9" * 26 + b"}}", 400),
        ("/admin/rollouts", b'{"run":"' + b"x" * 900_000 + b'"}', 400),
        ("/admin/rollouts", b'{"task":"' + b"x" * 2_000_000 + b'"}', 413),
        ("/admin/rollouts/ro_nothing/close", b"", 404),
        ("/admin/rollouts/ro_nothing/labels", b'{"labels":{}}', 404),
        ("/admin/rollouts/ro_nothing/labels", b"{", 400),
        ("/admin/rollouts/ro_nothing/labels", b'{"labels":[]}', 400),
        ("/admin/rollouts/ro_nothing/labels", b"[]", 400),
        ("/admin/rollouts/%2e%2e%2f/close", b"", 404),
        ("/admin/policy", b"", 400),
        ("/admin/policy", b'{"version":1e30}', 400),
        ("/admin/policy", b'{"version":-1}', 400),
        ("/admin/nothing", b"{}", 404),
    ],
)
async def test_a_bad_request_is_told_in_json_and_changes_nothing(proxied, path, body, status):
    async with proxied([]) as (proxy, _):
        found, answer = await ask(proxy.admin_url + path, headers=key(proxy), data=io.BytesIO(body))
        assert found == status
        assert set(answer) <= {"error", "detail"}
        assert proxy.store.rollouts() == []
        assert (await ask(f"{proxy.admin_url}/health", "GET"))[0] == 200


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 400), ("rot13", 415)])
async def test_a_body_that_is_not_what_its_encoding_says_is_refused(proxied, encoding, status):
    async with proxied([]) as (proxy, _):
        headers = {**key(proxy), "Content-Encoding": encoding}
        url = f"{proxy.admin_url}/admin/rollouts"
        found, answer = await ask(url, headers=headers, data=io.BytesIO(b"{}"))
        assert found == status
        assert set(answer) == {"error"}
        headers["Content-Encoding"] = "gzip"
        body = io.BytesIO(gzip.compress(b"{}"))
        assert (await ask(url, headers=headers, data=body))[0] == 201


async def test_a_rollout_is_opened_with_budgets_and_expiry_labelled_and_closed(proxied):
    async with proxied([FINE]) as (proxy, _):
        wanted = {
            "run": "r",
            "harness": "h",
            "labels": {"a": 1},
            "budgets": {"max_calls": 3},
            "expires_in_s": 60,
        }
        url = f"{proxy.admin_url}/admin/rollouts"
        status, opened = await ask(url, headers=key(proxy), json=wanted)
        assert status == 201
        chat = f"{proxy.url}/r/{opened['secret']}/v1/chat/completions"
        assert (await ask(chat, data=BODY))[0] == 200
        mine = f"{url}/{opened['rollout_id']}"
        assert (await ask(f"{mine}/labels", headers=key(proxy), json={"labels": {"b": 2}}))[
            0
        ] == 200
        assert (await ask(f"{mine}/close", headers=key(proxy)))[0] == 200
        assert (await ask(chat, data=BODY))[0] == 403
        rollout = proxy.store.rollout(opened["rollout_id"])
        assert rollout.labels == {"a": 1, "b": 2}
        assert rollout.budgets == {"max_calls": 3}
        assert rollout.expires_at is not None


async def test_a_secret_that_has_expired_is_refused(proxied):
    async with proxied([FINE]) as (proxy, _):
        url = f"{proxy.admin_url}/admin/rollouts"
        _, opened = await ask(url, headers=key(proxy), json={"expires_in_s": 1e-6})
        chat = f"{proxy.url}/r/{opened['secret']}/v1/chat/completions"
        status, answer = await ask(chat, data=BODY)
        assert (status, answer["error"]["type"]) == (401, "authentication_error")


async def test_a_rollout_can_be_opened_in_a_run_that_is_in_the_store(proxied):
    async with proxied([FINE]) as (proxy, _):
        run = proxy.store.open_run("evening")
        url = f"{proxy.admin_url}/admin/rollouts"
        status, opened = await ask(url, json={"run_id": run.id}, headers=key(proxy))
        assert (status, opened["run_id"]) == (201, run.id)
        assert proxy.store.rollout(opened["rollout_id"]).run_id == run.id
        assert (await ask(url, json={"run_id": "ru_none"}, headers=key(proxy)))[0] == 404


async def test_the_engine_is_told_to_whoever_has_the_secret(proxied):
    async with proxied([FINE]) as (proxy, _):
        status, told = await ask(f"{proxy.admin_url}/admin/engine", "GET", headers=key(proxy))
        assert status == 200
        assert told["served_model"] == "scripted"
        assert told["max_model_len"] == 131_072
        assert told["tokenizer_hash"]
        assert told["template_hash"]
        assert (await ask(f"{proxy.admin_url}/admin/engine", "GET"))[0] == 401
