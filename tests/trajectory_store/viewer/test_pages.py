"""What the pages say, read as a client and in a real browser."""

import os
import re
import shutil

import aiohttp
import pytest

from budwood.trajectory_store import (
    CallIntent,
    PromptMode,
    RequestBody,
    new_call_id,
    new_lane_id,
)
from budwood.trajectory_store.testing import SECRET
from budwood.trajectory_store.viewer import Access, create_app

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EXPLANATIONS = {"engine_ignored_ids": "the engine read other tokens than it was sent"}


@pytest.fixture
async def viewer(store, aiohttp_server):
    access = Access.make("127.0.0.1", 0, "a token for the tests alone")
    app = create_app(store, access, explanations=EXPLANATIONS, page_size=3)
    access.port = (await aiohttp_server(app)).port
    return access


@pytest.fixture
async def read(viewer):
    """Return a function that gives the text of a page."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        await session.get(viewer.url)

        async def page(path):
            async with session.get(viewer.origin + path) as answer:
                assert answer.status == 200
                assert answer.content_type == "text/html"
                return await answer.text()

        yield page


async def test_runs_lead_to_rollouts_and_calls(read, recorded):
    assert f'href="/run/{recorded.run_id}"' in await read("/")
    first, second = (
        await read(f"/run/{recorded.run_id}"),
        await read(f"/run/{recorded.run_id}?page=2"),
    )
    assert f'href="/rollout/{recorded.tree}"' in first
    assert "1.0" in first
    assert f'href="/rollout/{recorded.running}"' in second
    assert "environment" in second
    tree = await read(f"/rollout/{recorded.tree}")
    for name, call in recorded.calls.items():
        if name.startswith("tree."):
            assert f'href="/call/{call}"' in tree


async def test_a_page_number_out_of_range_is_the_nearest(read, recorded):
    for page in ("0", "99", "-1", "x", "٣", "9" * 400):
        assert "Page" in await read(f"/run/{recorded.run_id}?page={page}")


async def test_a_fork_and_a_sub_agent_stand_in_the_tree(read, recorded):
    tree = await read(f"/rollout/{recorded.tree}")
    assert re.search(r"sub-agent</strong>", tree)
    fork = recorded.calls["tree.fork"]
    assert re.search(rf'fork">\s*<span class="mark">fork</span>\s*<a href="/call/{fork}"', tree)
    assert "reasoning_dropped" in tree


async def test_a_call_shows_messages_reasoning_and_tools(read, recorded):
    page = await read(f"/call/{recorded.calls['tree.2']}?page=2")
    assert "a.py\nb.py" in page
    assert "Two files." in page
    page = await read(f"/call/{recorded.calls['tree.2']}")
    assert "First I look." in page
    assert "bash" in page


async def test_tokens_show_ids_and_logprobs(read, recorded, store):
    page = await read(f"/call/{recorded.calls['tree.1']}/tokens")
    tokens = store.tokens(recorded.calls["tree.1"])
    assert " ".join(map(str, tokens.prompt_ids)) in page
    assert page.count("<tr class=") == len(tokens.out_ids)
    assert "-0.1000" in page


async def test_why_explains_reasons_and_shows_where_a_branch_leaves(read, recorded):
    page = await read(f"/call/{recorded.calls['tree.inexact']}/why")
    assert EXPLANATIONS["engine_ignored_ids"] in page
    page = await read(f"/call/{recorded.calls['tree.fork']}/why")
    assert "reasoning differs" in page
    assert "-First I look." in page


async def test_a_secret_is_on_no_page(read, recorded):
    pages = ["/", f"/run/{recorded.run_id}", f"/rollout/{recorded.secret}"]
    for name in ("secret.1", "secret.2"):
        call = recorded.calls[name]
        pages += [
            f"/call/{call}",
            f"/call/{call}?page=2",
            f"/call/{call}/tokens",
            f"/call/{call}/why",
        ]
    texts = [await read(path) for path in pages]
    assert not any(SECRET in text for text in texts)
    assert any("█secret█" in text for text in texts)
    hidden = await read(f"/call/{recorded.calls['secret.2']}/tokens")
    assert "not shown" in hidden
    assert 'class="ids"' not in hidden


async def test_hostile_text_is_text(read, recorded):
    page = await read(f"/call/{recorded.calls['hostile.2']}?page=2")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<img src=x" not in page
    assert 'href="javascript' not in page
    assert "{{ 7*7 }}" in page


async def test_chromium_runs_nothing_of_a_hostile_text(viewer, recorded):
    """Reads every page of the hostile rollout in a real browser, scripts switched on."""
    from playwright.async_api import async_playwright

    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        why = "no browser to read the pages with (Debian: apt-get install chromium)"
        if "CI" in os.environ:
            pytest.fail(why)
        pytest.skip(f"{why}; CI runs this")
    said: list[str] = []
    asked: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = await browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(viewer.url)
        assert page.url == f"{viewer.origin}/"
        await page.click(f"text={recorded.run_id}")
        await page.click(f"text={recorded.hostile}")
        for name in ("hostile.1", "hostile.2"):
            for path in ("", "?page=2", "/tokens", "/why"):
                await page.goto(f"{viewer.origin}/call/{recorded.calls[name]}{path}")
                assert "owned" not in await page.title()
                assert await page.locator("script, img, iframe, object, [onerror]").count() == 0
        text = await page.locator("main").inner_text()
        await page.goto(f"{viewer.origin}/call/{recorded.calls['hostile.2']}?page=2")
        text = await page.locator("main").inner_text()
        assert "<script>document.title='owned'</script>" in text
        colour = await page.evaluate("getComputedStyle(document.querySelector('pre')).whiteSpace")
        assert colour == "pre-wrap", "the style sheet is applied"
        await browser.close()
    assert said == []
    assert all(url.startswith(viewer.origin) for url in asked)


async def test_what_is_no_character_is_shown_as_one_that_is_unknown(read, store, recorded):
    rollout = store.open_rollout(recorded.run_id)
    message = b'{"role":"user","content":"half \\ud83d and \\u0000 nothing"}'
    intent = CallIntent(
        id=new_call_id(), rollout_id=rollout.id, dialect="chat", lane=new_lane_id(),
        prompt_mode=PromptMode.RENDERED, body_hash=b"x" * 32, stream=False,
        body=RequestBody.from_parts(b'{"messages":[\x00]}', [message]),
    )  # fmt: skip
    store.begin_call(intent).result()
    page = await read(f"/call/{intent.id}")
    assert "half \ufffd and \ufffd nothing" in page
