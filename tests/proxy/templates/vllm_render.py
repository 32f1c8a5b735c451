"""The same check through vLLM's own render route, one server a template.

    python -m tests.proxy.templates.vllm_render [--templates NAME ...]

`vllm launch render` templates and tokenises without weights: 20 s and 0.7 GB a server. Prints how
the rows ended; exits 1 if any is wrong, or if vLLM renders a conversation otherwise than the
oracle, which would make the comparison worthless.
"""

import argparse
import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
from transformers import PreTrainedTokenizerFast

import budwood.proxy.engine as engine_room
from budwood.proxy.lineage.suffix import RenderRejected, SuffixFinder

from .conversations import Conversation, fixtures
from .corpus import BOS, EOS, PAD, ChatTemplate, template
from .jinja_renderer import JinjaRenderer
from .matrix import Tally, check_row, fuzz
from .toy_tokenizers import toy_tokenizer

FAMILIES = (
    ("trl/qwen3", "byte"),
    ("trl/glm4moe", "byte-rstrip"),
    ("trl/gemma4", "metaspace-first"),
    ("trl/llama3_1", "byte"),
    ("trl/nemotron_3_nano", "metaspace-always"),
    ("trl/deepseekv3_training", "byte"),
    ("trl/gptoss", "byte"),
    ("mistral/v3tek", "metaspace-first"),
)
_IN_PARTS = ("trl/gemma4",)
"""Templates that loop over contents, which vLLM therefore gives them in parts."""
_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 32768,
    "torch_dtype": "float32",
}


def write_model(folder: Path, chat_template: ChatTemplate, kind: str) -> None:
    """A folder that vLLM can render with: a tokenizer, its template, a configuration."""
    tokenizer = toy_tokenizer(kind)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD
    )
    fast.save_pretrained(folder)
    config = {**_CONFIG, "vocab_size": tokenizer.get_vocab_size()}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "template.jinja").write_text(chat_template.source)


@contextmanager
def vllm_render_server(template_path: Path, tokenizer_folder: Path) -> Iterator[str]:
    """The address of a running `vllm launch render` with that template and tokenizer."""
    launcher = Path(engine_room.__file__).with_name("vllm_cpu_launcher.py")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["launch", "render", str(tokenizer_folder), "--chat-template", str(template_path)]
    words += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "toy"]
    words += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    process = subprocess.Popen(
        [sys.executable, "-P", str(launcher), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    reader = threading.Thread(target=process.stdout.read, daemon=True)
    try:
        log = []
        for line in process.stdout:
            log.append(line)
            if "Application startup complete" in line:
                break
        else:
            raise RuntimeError("vLLM's render server did not start:\n" + "".join(log[-30:]))
        reader.start()
        _wait_until_it_listens(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        if reader.ident is not None:
            reader.join()
        process.stdout.close()


def _wait_until_it_listens(port: int) -> None:
    """The log says that the application is ready a moment before its socket is."""
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("vLLM's render server started and does not listen")


class VllmRenderer:
    """A Renderer over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        template: dict[str, Any],
        add_generation_prompt: bool = True,
    ) -> "array[int]":
        body = {"model": "toy", "messages": messages, **template}
        body["add_generation_prompt"] = add_generation_prompt
        if tools:
            body["tools"] = tools
        return array("I", (await self._ask("/v1/chat/completions/render", body))["token_ids"])

    async def tokenize(self, text: str) -> "array[int]":
        body = {"model": "toy", "prompt": text, "add_special_tokens": False}
        return array("I", (await self._ask("/tokenize", body))["tokens"])

    async def _ask(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(self._url + route, json=body) as answer:
            if 400 <= answer.status < 500:
                raise RenderRejected(answer.status, await answer.text())
            answer.raise_for_status()
            return await answer.json()


class AsVllm(JinjaRenderer):
    """Prepares messages as vLLM 0.32 does, as far as the conversations here go.

    No content is empty content; a template that doesn't name the developer role gets it as system
    (vllm/renderers/hf.py, `_convert_developer_to_system`).
    """

    def _prepared(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        out = super()._prepared({**message, "content": "" if content is None else content})
        if out["role"] == "developer" and "'developer'" not in self.template.source.replace(
            '"', "'"
        ):
            out["role"] = "system"
        return out


async def check_through_vllm(
    chat_template: ChatTemplate, kind: str, talks: Iterable[Conversation], folder: Path
) -> Tally:
    """All rows of one template, the finder's renders made by vLLM."""
    write_model(folder, chat_template, kind)
    in_parts = chat_template.content_in_parts or chat_template.name in _IN_PARTS
    here = AsVllm(replace(chat_template, content_in_parts=in_parts), toy_tokenizer(kind))
    tally = Tally()
    with vllm_render_server(folder / "template.jinja", folder) as url:
        async with aiohttp.ClientSession() as session:
            there = VllmRenderer(session, url)
            finder = SuffixFinder(there, rng=random.Random(0))
            for talk, arguments in product(talks, chat_template.variants):
                row = f"{kind} {chat_template.name} {arguments} {talk.name}"
                if not await _renders_alike(here, there, talk, arguments):
                    tally.add("unlike", row)
                await check_row(tally, finder, here, talk, arguments, row)
    tally.finder = Counter(finder.counts)
    return tally


async def _renders_alike(
    here: JinjaRenderer, there: VllmRenderer, talk: Conversation, arguments: dict[str, Any]
) -> bool:
    messages = [*talk.history, talk.reply, *talk.tail]
    answers = []
    for renderer in (here, there):
        try:
            question = {"chat_template_kwargs": arguments} if arguments else {}
            answers.append(await renderer.render(messages, talk.tools, question))
        except RenderRejected:
            answers.append(None)
    return answers[0] == answers[1]


def main() -> int:
    """Check the families through vLLM; 0 if every row is right."""
    parser = argparse.ArgumentParser(description="check the suffix finder through vLLM's renders")
    parser.add_argument("--templates", nargs="+", default=[name for name, _ in FAMILIES])
    parser.add_argument("--fuzz", type=int, default=4, help="random conversations a manner")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    n_faults = 0
    for name in options.templates:
        talks = [*fixtures(), *fuzz(options.seed, options.fuzz)]
        kind = dict(FAMILIES).get(name, "byte")
        with tempfile.TemporaryDirectory() as folder:
            tally = asyncio.run(check_through_vllm(template(name), kind, talks, Path(folder)))
        print(f"{name}, {kind}, rendered by vLLM\n  {tally}", flush=True)
        for fault in tally.faults[:20]:
            print("FAULT", fault)
        n_faults += len(tally.faults)
    print(f"{len(options.templates)} templates, {n_faults} faults")
    return 1 if n_faults else 0


if __name__ == "__main__":
    sys.exit(main())
