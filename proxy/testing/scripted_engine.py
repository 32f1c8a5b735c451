"""A scripted engine: vLLM's protocol without a model, for tests, benchmarks and the quick demo.

    python -m budwood.proxy.testing.scripted_engine --port 8000

It is a program that plays a server, not a patch of our functions: everything that talks to vLLM
talks to it. It says what it is: `owned_by`, `version`, `system_fingerprint` and its first log line.
Ids are those of `ToyTokenizer`, prompts are rendered by the test models' chat template, and an
answer is

  * what the `script` says: a list of replies, given in turn, or a function of the call; or
  * what the marker in the prompt asks for (`scripted_marker`), faults included.

It answers chat (plain and streamed, from messages or from given ids), its `/render`, `/derender`,
`/inference/v1/generate`, `/tokenize`, `/detokenize`, `/v1/models`, `/version`, `/health`,
`/weight_info`, and `/stats`, which is its own.
"""

import argparse
import asyncio
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

import orjson

from ..engine.probe import PROBE_ID
from . import scripted_wire as wire
from .chat_template import CHAT_TEMPLATE, render
from .scripted_checks import Refused, TokenIn, check_fields, check_ids, cut_ids, loads, room
from .scripted_faults import (
    faulty_bytes,
    faulty_events,
    late_reply,
    send,
    shortened,
    with_odd_token,
)
from .scripted_http import Answer, HttpConnection, HttpRequest, Statistics
from .scripted_marker import Marker, find_marker, marker_sample
from .scripted_reply import Reply, Sampled, sample
from .toy_tokenizer import ToyTokenizer

OWNED_BY = "budwood-scripted-engine"


@dataclass(slots=True)
class ScriptedCall:
    """One chat or generate call, as a script sees it."""

    index: int
    """The n-th call of this engine, from 0; -1 for what our own probe asks."""
    body: dict[str, Any]
    """The request; long prompt ids are cut out of it."""
    prompt_json: bytes
    """The prompt's ids as JSON text: as sent, or as rendered."""
    was_sent_ids: bool
    request: HttpRequest
    tokenizer: ToyTokenizer = field(repr=False)

    @property
    def prompt_ids(self) -> list[int]:
        """The ids that the engine reads."""
        return orjson.loads(self.prompt_json)

    @property
    def prompt(self) -> str:
        """The text that the engine reads."""
        return self.tokenizer.decode(self.prompt_ids)

    @property
    def n_prompt(self) -> int:
        """The number of prompt ids."""
        return self.prompt_json.count(b",") + 1


Script = Sequence[Reply] | Callable[[ScriptedCall], Reply]


class ScriptedEngine:
    """Serves on 127.0.0.1 while entered; `url` ends without a slash and without `/v1`.

    `token_in` names the way in that it honours; the others it overlooks, as a real server would.
    `as_vllm=False` makes it any OpenAI-compatible server: no ids, no render, no version.
    `raw_logprobs` and `tool_parser=False` play a server without the flags that `doctor` asks for.
    What our own probe asks is answered beside the script and is not among `calls`.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        model: str = "scripted",
        adversarial: bool = False,
        template: str = CHAT_TEMPLATE,
        max_model_len: int = 131_072,
        token_in: TokenIn = "kv_transfer",
        scale_out: bool = True,
        as_vllm: bool = True,
        version: str = "0.32.0+scripted",
        raw_logprobs: bool = False,
        tool_parser: bool = True,
        seed: int = 0,
        port: int = 0,
        keep_calls: bool = True,
    ) -> None:
        self.script = script
        self.model = model
        self.tokenizer = ToyTokenizer(adversarial=adversarial)
        self.template = template
        self.max_model_len = max_model_len
        self.token_in: TokenIn = token_in
        self.scale_out = scale_out
        self.as_vllm = as_vllm
        self.version = version
        self.raw_logprobs = raw_logprobs
        self.tool_parser = tool_parser
        self.seed = seed
        self.weight_version = "default"
        self.stats = Statistics()
        self.calls: list[ScriptedCall] = []
        self._keep_calls = keep_calls
        self._n_calls = 0
        self._port = port
        self._tried: Counter[int] = Counter()
        self._stack = AsyncExitStack()
        self._connections: set[HttpConnection] = set()
        self._aborted = asyncio.Event()

    @property
    def url(self) -> str:
        """The server's address, without `/v1`."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        """Start to listen."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._connect, "127.0.0.1", self._port, backlog=4096)
        self._port = server.sockets[0].getsockname()[1]
        self._stack.callback(server.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening and cut what is open."""
        await self._stack.aclose()
        for connection in list(self._connections):
            connection.t.abort()
        await asyncio.sleep(0)

    async def aborted(self) -> None:
        """Return once a client has left before the end of its answer."""
        await self._aborted.wait()

    def _connect(self) -> HttpConnection:
        connection = HttpConnection(self._handle, self.stats, self._aborted.set)
        if len(self._connections) > 64:
            self._connections = {c for c in self._connections if not c.t.is_closing()}
        self._connections.add(connection)
        return connection

    # -- routes

    def _handle(self, connection: HttpConnection, request: HttpRequest) -> Answer | None:
        try:
            if request.method == "GET":
                return connection.reply(200, self._get(request.path))
            if request.path.endswith("/chat/completions"):
                return self._chat(connection, request)
            if request.path == "/inference/v1/generate" and self.as_vllm:
                return self._generate(connection, request)
            return connection.reply(200, orjson.dumps(self._post(request)))
        except Refused as refused:
            return connection.reply(refused.status, refused.body)

    def _get(self, path: str) -> bytes:
        if path.endswith("/models"):
            card: dict[str, Any] = {"id": self.model, "object": "model", "created": wire.CREATED}
            card |= {"owned_by": OWNED_BY, "root": self.model, "parent": None}
            if self.as_vllm:
                card["max_model_len"] = self.max_model_len
            return orjson.dumps({"object": "list", "data": [card]})
        if path == "/stats":
            return orjson.dumps(asdict(self.stats))
        if path == "/health":
            return b""
        if self.as_vllm and path == "/version":
            return orjson.dumps({"version": self.version})
        if self.as_vllm and path == "/weight_info":
            return orjson.dumps({"weight_version": self.weight_version})
        raise Refused(404, "Not Found")

    def _post(self, request: HttpRequest) -> dict[str, Any]:
        if not self.as_vllm:
            raise Refused(404, "Not Found")
        body = loads(request.body)
        match request.path:
            case "/v1/chat/completions/render":
                self._require_scale_out()
                return self._rendered(body)
            case "/v1/chat/completions/derender":
                self._require_scale_out()
                return self._derendered(body)
            case "/tokenize":
                ids = self._render_ids(body) if "messages" in body else self._encode(body["prompt"])
                return {
                    "count": len(ids),
                    "max_model_len": self.max_model_len,
                    "tokens": ids,
                    "token_strs": None,
                }
            case "/detokenize":
                return {"prompt": self.tokenizer.decode(body["tokens"])}
            case "/update_weight_version":
                self.weight_version = str(body["new_version"])
                return {"message": "weight version updated"}
        raise Refused(404, "Not Found")

    def _require_scale_out(self) -> None:
        if not self.scale_out:
            raise Refused(403, "This endpoint is disabled. Start with --enable-scale-out.")

    def _encode(self, text: str) -> list[int]:
        try:
            return self.tokenizer.encode(text)
        except UnicodeEncodeError as error:
            raise Refused(400, f"tokenizer: {error}") from error

    def _render_ids(self, body: dict[str, Any]) -> list[int]:
        messages = body.get("messages")
        if not messages:
            raise Refused(400, "messages must not be empty", "messages")
        options = dict(body.get("chat_template_kwargs") or {})
        if body.get("reasoning_effort") is not None:
            options.setdefault("reasoning_effort", body["reasoning_effort"])
        options["add_generation_prompt"] = body.get("add_generation_prompt", True)
        tools = body.get("tools") if body.get("tool_choice") != "none" else None
        try:
            text = render(messages, tools, template=self.template, **options)
        except Exception as error:  # a template may raise anything; vLLM answers 400 to all of it
            raise Refused(400, f"chat template: {error}") from error
        return self._encode(text)

    def _rendered(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = self._render_ids(body)
        room(len(ids), body, self.max_model_len)
        return {
            "request_id": "chatcmpl-scripted-render",
            "token_ids": ids,
            "token_offsets": None,
            "features": None,
            "content_parts": None,
            "sampling_params": {"temperature": body.get("temperature", 1.0)},
            "model": self.model,
            "reasoning_ended": False,
            "return_token_ids": None,
            "output_mode": "tokens",
            "stream": False,
            "cache_salt": None,
            "priority": 0,
            "kv_transfer_params": None,
        }

    def _derendered(self, body: dict[str, Any]) -> dict[str, Any]:
        if "chat_request" not in body:
            raise Refused(
                400,
                "chat_request is required when a tool or reasoning parser is configured because"
                " plain detokenization would leak raw parser markup into content.",
            )
        generated = body["generate_response"]
        choice = generated["choices"][0]
        ids = choice["token_ids"]
        has_end = bool(ids) and ids[-1] == self.tokenizer.end_id
        text = self.tokenizer.decode(ids[:-1] if has_end else ids)
        parsed = sample(Reply(raw=text), ToyTokenizer(), seed=self.seed)
        shape = wire.Shape(generated["request_id"], self.model)
        answer = orjson.loads(wire.plain_chat(parsed, shape, None, 0))
        answer["choices"][0]["finish_reason"] = choice["finish_reason"]
        answer["choices"][0]["token_ids"] = ids
        answer["usage"] = generated["usage"]
        return answer

    # -- calls

    def _chat(self, connection: HttpConnection, request: HttpRequest) -> Answer | None:
        sent, rest = cut_ids(request.body, wanted=self.token_in)
        body = loads(rest)
        check_fields(body, tool_parser=self.tool_parser)
        if sent is not None:
            check_ids(sent, self.tokenizer.vocab_size, field="kv_transfer_params.prompt_token_ids")
        prompt = sent if sent is not None else orjson.dumps(self._render_ids(body))
        call = self._call(body, prompt, request, was_sent_ids=sent is not None)
        shape = wire.Shape(
            answer_id=f"chatcmpl-{request.header('x-request-id') or f'scripted-{call.index}'}",
            model=self.model,
            logprobs=self.as_vllm and bool(body.get("logprobs")),
            n_top=body.get("top_logprobs") or 0,
            token_ids=self.as_vllm and bool(body.get("return_token_ids")),
            tokens_as_ids=bool(body.get("return_tokens_as_token_ids")),
            usage=bool((body.get("stream_options") or {}).get("include_usage")),
            scale=1.0 if self.raw_logprobs else body.get("temperature") or 1.0,
        )
        sampled, marker = self._sample(call, shape)
        if self._answers_fault(connection, marker):
            return None
        if body.get("stream"):
            self.stats.streams += 1
            return self._streamed(connection, call, sampled, shape, marker)
        answer = self._plain(call, sampled, shape, marker)
        if not marker.fault and not marker.first and not marker.delay:
            connection.reply(200, answer)
            self.stats.done += 1
            return None
        return late_reply(connection, answer, marker, len(sampled.ids))

    def _call(
        self, body: dict[str, Any], prompt: bytes, request: HttpRequest, *, was_sent_ids: bool
    ) -> ScriptedCall:
        if body.get("model") not in (None, "", self.model):
            raise Refused(
                404,
                f"The model `{body['model']}` does not exist. Valid aliases: {self.model}.",
                "model",
            )
        is_probe = request.header("x-request-id") == PROBE_ID
        index = -1 if is_probe else self._n_calls
        call = ScriptedCall(index, body, prompt, was_sent_ids, request, self.tokenizer)
        room(call.n_prompt, body, self.max_model_len)
        if not is_probe:
            self._n_calls += 1
            self.stats.calls += 1
            if self._keep_calls:
                self.calls.append(call)
        return call

    def _sample(self, call: ScriptedCall, shape: wire.Shape) -> tuple[Sampled, Marker]:
        body = call.body
        limit = room(call.n_prompt, body, self.max_model_len)
        if self.script is None and call.index >= 0:
            marker = self._marker(call)
            if marker is None:
                raise Refused(400, "the scripted engine has no script, and the prompt no marker")
            sampled = marker_sample(marker.seed, marker.chunks * marker.tpc)
            if limit < len(sampled.ids):
                sampled = shortened(sampled, limit)
            return sampled, marker
        reply = self._reply(call)
        stop = body.get("stop") or ()
        sampled = sample(
            reply,
            self.tokenizer,
            seed=self.seed * 1_000_003 + call.index,
            max_tokens=limit,
            stop=(stop,) if isinstance(stop, str) else stop,
            tools=bool(body.get("tools")) and body.get("tool_choice") != "none",
        )
        marker = Marker(
            seed=call.index,
            tpc=reply.tokens_per_event,
            delay=reply.delay_ms,
            first=reply.first_ms,
            fault=reply.fault,
        )
        return sampled, marker

    def _reply(self, call: ScriptedCall) -> Reply:
        if call.index < 0 or self.script is None:
            return Reply(content="hello")
        if callable(self.script):
            return self.script(call)
        if call.index >= len(self.script):
            raise Refused(500, f"the script has only {len(self.script)} replies")
        return self.script[call.index]

    def _marker(self, call: ScriptedCall) -> Marker | None:
        if not call.was_sent_ids:
            return find_marker(call.request.body)
        # Nearly always in the last message: decode the tail first, all of a long prompt seldom.
        tail = call.prompt_json[-12_000:]
        if len(tail) < len(call.prompt_json):
            tail = b"[" + tail[tail.index(b",") + 1 :]
        found = find_marker(self.tokenizer.decode(orjson.loads(tail)).encode())
        return found or find_marker(call.prompt.encode())

    def _answers_fault(self, connection: HttpConnection, marker: Marker) -> bool:
        kind, _, argument = marker.fault.partition("@")
        if kind == "flaky":
            self._tried[marker.seed] += 1
            if self._tried[marker.seed] > 1:
                return False
        if kind in ("status", "flaky"):
            status = int(argument)
            headers = b"Retry-After: 0\r\n" if status in (429, 503) else b""
            body = wire.error(status, "a scripted fault", None, "ScriptedFault")
            connection.reply(status, body, headers=headers)
            return True
        if kind == "garbage":
            connection.t.write(b"\x00\x01not http at all\r\n\r\n")
            connection.t.close()
            return True
        return False

    def _plain(
        self, call: ScriptedCall, sampled: Sampled, shape: wire.Shape, marker: Marker
    ) -> bytes:
        kind, _, argument = marker.fault.partition("@")
        if kind in ("sentinel", "nullprob", "badid"):
            sampled = with_odd_token(sampled, kind, int(argument or 0))
        if kind == "nologprobs":
            shape = replace(shape, logprobs=False)
        if kind == "nofinish":
            sampled = replace(sampled, finish=None)  # pyright: ignore[reportArgumentType]
        prompt = call.prompt_json if shape.token_ids else None
        if kind == "wrongids" and prompt:
            prompt = b"[1," + prompt[1:]
        answer = wire.plain_chat(sampled, shape, prompt, call.n_prompt)
        if kind == "noids":
            answer = re.sub(rb'"token_ids":\[[^\]]*\]', b'"token_ids":null', answer)
        if kind == "badtext":
            answer = re.sub(rb'"content":"[^"]*"', b'"content":7', answer, count=1)
        if kind == "nousage":
            answer = re.sub(rb'"usage":\{[^}]*\}\}', b'"usage":null', answer)
        return answer[: len(answer) // 2] if kind == "badjson" else answer

    async def _streamed(
        self,
        connection: HttpConnection,
        call: ScriptedCall,
        sampled: Sampled,
        shape: wire.Shape,
        marker: Marker,
    ) -> None:
        prompt = call.prompt_json if shape.token_ids else None
        if marker.fault == "wrongids" and prompt:
            prompt = b"[1," + prompt[1:]
        events = [wire.head_event(shape, prompt)]
        if (
            self.script is None
            and call.index >= 0
            and not marker.fault
            and sampled.finish == "stop"
        ):
            # The same objects for every caller: a benchmark asks for one marker a thousand times.
            same_id = replace(shape, answer_id=f"chatcmpl-scripted-{marker.seed}", usage=False)
            events[0] = wire.head_event(same_id, prompt)
            events += _marker_events(marker.seed, marker.chunks, marker.tpc, same_id)
        else:
            events += faulty_events(sampled, shape, marker)
        if shape.usage and marker.fault != "nousage":
            events.append(wire.usage_event(sampled, shape, call.n_prompt))
        if marker.fault != "nodone":
            events.append(wire.DONE)
        await send(connection, faulty_bytes(events, marker.fault), marker)

    # -- generate

    def _generate(self, connection: HttpConnection, request: HttpRequest) -> Answer | None:
        self._require_scale_out()
        given = loads(request.body)
        prompt = orjson.dumps(given.get("token_ids") or [])
        check_ids(prompt, self.tokenizer.vocab_size, field=None)
        params = given.get("sampling_params") or {}
        body = {
            "model": given.get("model"),
            "max_tokens": params.get("max_tokens"),
            "stop": params.get("stop"),
            "tools": [True],
        }
        call = self._call(body, prompt, request, was_sent_ids=True)
        shape = wire.Shape(
            answer_id=request.header("x-request-id") or f"scripted-{call.index}",
            model=self.model,
            logprobs=params.get("logprobs") is not None,
            token_ids=True,
        )
        sampled, marker = self._sample(call, shape)
        if self._answers_fault(connection, marker):
            return None
        kind, _, argument = marker.fault.partition("@")
        sampled = with_odd_token(sampled, kind, int(argument) if argument.isdigit() else 0)
        answer = wire.generated(sampled, shape, prompt, call.n_prompt, self.weight_version)
        return late_reply(connection, orjson.dumps(answer), marker, len(sampled.ids))


@lru_cache(maxsize=512)
def _marker_events(seed: int, chunks: int, tpc: int, shape: wire.Shape) -> list[bytes]:
    return wire.token_events(marker_sample(seed, chunks * tpc), shape, tpc)


async def _serve(engine: ScriptedEngine, max_seconds: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with engine:
        print(f"scripted engine (no model, replies by script) on {engine.url}/v1", flush=True)
        if max_seconds:
            loop.call_later(max_seconds, stop.set)
        await stop.wait()
    print(orjson.dumps(asdict(engine.stats)).decode(), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve markers until a signal comes."""
    parser = argparse.ArgumentParser(
        description="An engine without a model: it answers markers ([[stub ...]]) in prompts."
    )
    parser.add_argument("--port", type=int, default=18000)
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--max-model-len", type=int, default=131_072)
    parser.add_argument("--token-in", default="kv_transfer", choices=TokenIn.__args__)
    parser.add_argument("--adversarial", action="store_true", help="sample odd spellings")
    parser.add_argument("--no-scale-out", action="store_true", help="no render route")
    parser.add_argument("--text-only", action="store_true", help="any OpenAI-compatible server")
    parser.add_argument("--max-seconds", type=float, default=3600, help="0: until a signal")
    options = parser.parse_args(argv)
    engine = ScriptedEngine(
        model=options.model,
        max_model_len=options.max_model_len,
        token_in=options.token_in,
        adversarial=options.adversarial,
        scale_out=not options.no_scale_out,
        as_vllm=not options.text_only,
        port=options.port,
        keep_calls=False,
    )
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    run(_serve(engine, options.max_seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
