"""The ways in for token ids, behind one seam.

| name | ids go in by | visible text comes |
|---|---|---|
| `chat_prompt_token_ids` | `prompt_token_ids` of a chat request | as it is sampled |
| `kv_transfer` | `kv_transfer_params.prompt_token_ids` of a chat request | as it is sampled |
| `generate` | `/inference/v1/generate`, then `derender`, once | in one piece (`coarse`) |
| `text` | not at all: the engine renders the messages | as it is sampled |

Which of them an engine honours is found out by asking (`probe`). A further kind of engine is a
further way; the conformance test runs on each.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol

import aiohttp
import orjson

from ..call import Delta
from .client import Client
from .errors import EngineBroken
from .prompt import compact
from .reply import MALFORMED, Collected, loads
from .request import EngineCall
from .settings import EngineSettings, WayName
from .stream import chat_batches, plain_delta, raise_error_of

CHAT = "/v1/chat/completions"


class WayIn(Protocol):
    """How one call is put to an engine and read from it."""

    name: WayName
    path: str

    async def body(self, call: EngineCall, client: Client, base_url: str) -> bytes:
        """Return the request's body; may ask the engine for parts of it."""
        ...

    def batches(
        self,
        call: EngineCall,
        collected: Collected,
        client: Client,
        base_url: str,
        response: aiohttp.ClientResponse,
    ) -> AsyncIterator[list[Delta]]:
        """Yield what a client sees as it comes, and fill `collected`; raises EngineError.

        `collected.is_whole` is true after the last item of a whole answer.
        """
        ...


class ChatWay:
    """A chat completion, with the prompt's ids in one of two fields or in neither."""

    path = CHAT

    def __init__(self, name: WayName, settings: EngineSettings) -> None:
        self.name: WayName = name
        self._settings = settings

    async def body(self, call: EngineCall, client: Client, base_url: str) -> bytes:
        """Return the chat request; the ids' JSON text is pasted in, not formatted."""
        fields = {**call.fields, "messages": call.messages}
        if call.prompt is not None:
            ids = orjson.Fragment(call.prompt.json)
            if self.name == "kv_transfer":
                given = fields.get("kv_transfer_params") or {}
                fields["kv_transfer_params"] = {**given, "prompt_token_ids": ids}
            else:
                fields["prompt_token_ids"] = ids
        return compact(fields)

    async def batches(
        self,
        call: EngineCall,
        collected: Collected,
        client: Client,
        base_url: str,
        response: aiohttp.ClientResponse,
    ) -> AsyncIterator[list[Delta]]:
        """Yield the deltas as they come; a plain answer is one delta."""
        idle_s = self._settings.idle_s
        if call.stream and response.content_type != "application/json":
            pieces = client.pieces(response, idle_s)
            async for batch in chat_batches(pieces, collected, passes_tokens=call.passes_tokens):
                yield batch
            return
        body = await client.read(response, idle_s)
        delta = plain_delta(body, collected, passes_tokens=call.passes_tokens)
        if (
            call.stream
        ):  # a server that does not stream, or an error that came too late for a status
            collected.flags.append("coarse")
        if delta is not None:
            yield [delta]


_SAMPLING = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "max_tokens", "seed", "stop", "stop_token_ids", "logit_bias",
        "bad_words", "min_tokens", "ignore_eos", "allowed_token_ids",
        "include_stop_str_in_output",
    }
)  # fmt: skip
_GRAMMAR = frozenset({"response_format", "structured_outputs"})


class GenerateWay:
    """Ids in, ids out, and the engine's own parsers over the result, once."""

    name: WayName = "generate"
    path = "/inference/v1/generate"

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings

    async def body(self, call: EngineCall, client: Client, base_url: str) -> bytes:
        """Return the generate request; raises EngineError."""
        assert call.prompt is not None
        params: dict[str, Any] = {}
        choice = call.fields.get("tool_choice")
        if _GRAMMAR & call.fields.keys() or choice not in (None, "auto", "none"):
            params = await self._grammar(call, client, base_url)
        params |= {name: value for name, value in call.fields.items() if name in _SAMPLING}
        params["logprobs"] = call.fields.get("top_logprobs") or 0
        body: dict[str, Any] = {
            "model": call.model,
            "token_ids": orjson.Fragment(call.prompt.json),
            "sampling_params": params,
            "return_token_ids": True,
        }
        if "cache_salt" in call.fields:
            body["cache_salt"] = call.fields["cache_salt"]
        return compact(body)

    async def _grammar(self, call: EngineCall, client: Client, base_url: str) -> dict[str, Any]:
        """Return the sampling parameters that the engine makes of the grammar fields."""
        fields = {name: value for name, value in call.fields.items() if name != "stream"}
        fields = {**_without_stream(fields), "messages": call.messages}
        rendered = await client.json(
            f"{base_url}{CHAT}/render", fields, limit_s=self._settings.small_s
        )
        return dict(rendered.get("sampling_params") or {})

    async def batches(
        self,
        call: EngineCall,
        collected: Collected,
        client: Client,
        base_url: str,
        response: aiohttp.ClientResponse,
    ) -> AsyncIterator[list[Delta]]:
        """Yield the whole reply as one delta."""
        body = await client.read(response, self._settings.idle_s)
        if collected.raw is not None:
            collected.raw.append(body)
        generated = self._take(body, call, collected)
        message = await self._parsed(generated, call, collected, client, base_url)
        if call.stream:
            collected.flags.append("coarse")
        delta = self._visible(message, call, collected)
        if delta is not None:
            yield [delta]

    def _take(self, body: bytes, call: EngineCall, collected: Collected) -> dict[str, Any]:
        """Keep ids and logprobs; return the answer for the derenderer, without the prompt."""
        try:
            generated = loads(collected.take_prompt(body))
            raise_error_of(generated)
            choice = generated["choices"][0]
            collected.take_ids(choice["token_ids"] or [])
            entries = (choice.get("logprobs") or {}).get("content") or ()
            collected.take_numbers(entry["logprob"] for entry in entries)
            collected.labels = [_label(entry) for entry in entries]
            collected.has_labels = True
            if choice.get("finish_reason") is not None:
                collected.take_finish(choice["finish_reason"], choice.get("stop_reason"))
            if generated.get("usage"):
                collected.take_usage(generated["usage"])
            collected.weight_versions = spans = choice.get("weight_versions") or None
            if len({span.get("version") for span in spans or ()}) > 1:
                collected.flags.append("mixed")
        except MALFORMED as error:
            raise EngineBroken("bad_event", f"no answer of generate: {error!r}") from error
        return generated

    async def _parsed(
        self,
        generated: dict[str, Any],
        call: EngineCall,
        collected: Collected,
        client: Client,
        base_url: str,
    ) -> dict[str, Any]:
        """Return the message that the engine's parsers make of the ids.

        The derenderer keeps special tokens in the text, for its parsers; the one that ended the
        reply would stay in what a client sees, so it is not given the last id of a stopped reply.
        """
        assert call.prompt is not None
        ids = collected.ids.tolist()
        if collected.finish == "stop" and not isinstance(collected.stop_reason, str):
            ids = ids[:-1]
        if not ids:
            return {"role": "assistant", "content": None}
        choice = {**generated["choices"][0], "token_ids": ids, "logprobs": None}
        given = {
            **generated,
            "choices": [choice],
            "prompt_token_ids": orjson.Fragment(call.prompt.json),
        }
        answer = await client.json(
            f"{base_url}{CHAT}/derender",
            {
                "model": call.model,
                "generate_response": given,
                "chat_request": {**_without_stream(call.fields), "messages": call.messages},
            },
            limit_s=self._settings.small_s,
        )
        try:
            message = dict(answer["choices"][0]["message"])
        except MALFORMED as error:
            raise EngineBroken("bad_event", f"no answer of derender: {error!r}") from error
        if isinstance(collected.stop_reason, str):
            # The derenderer sees all ids; a stop string cuts the text but not the ids.
            name = "content" if message.get("content") else "reasoning"
            message[name] = (message.get(name) or "").split(collected.stop_reason)[0]
        return message

    def _visible(
        self, message: dict[str, Any], call: EngineCall, collected: Collected
    ) -> Delta | None:
        if message.get("tool_calls") and collected.finish == "stop":
            collected.finish = "tool_calls"
        tokens = {"content": [_chat_entry(i, p) for i, p in _pairs(collected)]}
        ids = collected.ids.tolist()
        choice = {"message": message, "token_ids": ids, "finish_reason": collected.finish}
        shown = Collected(None, wants_ids=False)
        delta = plain_delta(
            orjson.dumps({"choices": [{**choice, "logprobs": tokens}]}),
            shown,
            passes_tokens=call.passes_tokens,
        )
        collected.content, collected.reasoning = shown.content, shown.reasoning
        collected.calls, collected.entries = shown.calls, shown.entries
        collected.is_whole = True
        return delta


def _label(entry: dict[str, Any]) -> str:
    """Return the id that a logprob belongs to; vLLM 0.31 spells it as a token."""
    number = entry.get("token_id")
    return f"token_id:{number}" if number is not None else str(entry.get("token"))


def _pairs(collected: Collected) -> list[tuple[int, float]]:
    return list(zip(collected.ids, collected.logprobs, strict=False))


def _chat_entry(number: int, logprob: float) -> dict[str, Any]:
    """Return a chat logprob entry; generate gives no text of single tokens."""
    return {"token": f"token_id:{number}", "logprob": logprob, "bytes": None, "top_logprobs": []}


def _without_stream(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in fields.items() if name not in ("stream", "stream_options")
    }


def way_named(name: WayName, settings: EngineSettings) -> WayIn:
    """Return a way by its name."""
    return GenerateWay(settings) if name == "generate" else ChatWay(name, settings)
