"""Finds out what an engine is and can, by asking it rather than by its version.

The way in for ids is tried, not looked up: one token is sampled from a prompt of known ids while
the messages say something else, and the way is taken whose answer names those ids as read. The
logprobs mode is seen from one prompt at two temperatures: processed logprobs shrink their distances
with the temperature, raw ones do not.
"""

import hashlib
import json
from array import array
from pathlib import Path
from typing import Any, Literal

import orjson

from .client import Client
from .errors import EngineBroken, EngineError, EngineRefused
from .info import EngineInfo, Problem
from .prompt import Prompt
from .settings import EngineSettings, WayName
from .ways import CHAT

_DUMMY = [{"role": "user", "content": "-"}]
_KNOWN = [{"role": "user", "content": "Budwood asks: which ids do you read?"}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    },
}
_TEXT = "Naïve tokens: \tdef f(x):\n    return x != 42  # 漢字 🙂\n\n  Ωmega </s>"
PROBE_ID = "budwood-probe"
"""The `X-Request-Id` of all that is asked to find out, for whoever reads the engine's log."""
_NEEDS_PARSER = "tool choice requires"


async def probe(client: Client, url: str, settings: EngineSettings) -> EngineInfo:
    """Return what the server at `url` is; raises EngineError if it does not answer."""
    return await _Probe(client, url, settings).run()


class _Probe:
    def __init__(self, client: Client, url: str, settings: EngineSettings) -> None:
        self._client = client
        self._url = url
        self._settings = settings
        self._problems: list[Problem] = []
        self._model = ""

    async def run(self) -> EngineInfo:
        cards = await self._models()
        card = self._chosen(cards)
        self._model = card["id"]
        version = await self._version()
        limit = card.get("max_model_len")
        known = {
            "version": version,
            "models": tuple(other["id"] for other in cards),
            "served_model": self._model,
            "max_model_len": limit if isinstance(limit, int) else None,
        }
        # Both are vLLM's own; other servers that have them answer like it or fail the next steps.
        if version is None or not isinstance(limit, int):
            problems = (Problem.NOT_VLLM,)
            return EngineInfo(kind="openai", way_in="text", problems=problems, **known)
        route = await self._render_route()
        prompt = await self._known_prompt(route)
        way, can_generate = await self._way_in(prompt)
        if Problem.NO_TOKEN_IDS not in self._problems:
            await self._logprobs(way, prompt)
        await self._tools()
        await self._prefix_cache()
        return EngineInfo(
            kind="openai" if Problem.NO_TOKEN_IDS in self._problems else "vllm",
            way_in=way,
            render_route=route,
            can_generate=can_generate,
            end_ids=end_ids(card.get("root")),
            template_hash=await self._template_hash(route),
            tokenizer_hash=await self._tokenizer_hash(),
            problems=tuple(dict.fromkeys(self._problems)),
            **known,
        )

    async def _get(self, path: str) -> Any:
        return await self._client.json(self._url + path, limit_s=self._settings.small_s)

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        body = {"model": self._model, **body}
        return await self._client.json(
            self._url + path, body, limit_s=self._settings.small_s, call_id=PROBE_ID
        )

    async def _models(self) -> list[dict[str, Any]]:
        answer = await self._get("/v1/models")
        cards = answer.get("data") if isinstance(answer, dict) else None
        cards = [card for card in cards or () if isinstance(card, dict) and card.get("id")]
        if not cards:
            raise EngineBroken("bad_event", f"{self._url}/v1/models lists no model")
        return cards

    def _chosen(self, cards: list[dict[str, Any]]) -> dict[str, Any]:
        wanted = self._settings.model
        for card in cards:
            if wanted in (None, card["id"]):
                return card
        names = ", ".join(card["id"] for card in cards)
        raise EngineRefused(404, f"the engine serves no model {wanted!r}; it serves {names}")

    async def _version(self) -> str | None:
        try:
            answer = await self._get("/version")
        except (EngineRefused, EngineBroken):
            return None
        version = answer.get("version") if isinstance(answer, dict) else None
        return version if isinstance(version, str) else None

    async def _render_route(self) -> Literal["render", "tokenize"] | None:
        routes: tuple[tuple[Literal["render", "tokenize"], str, str], ...] = (
            ("render", f"{CHAT}/render", "token_ids"),
            ("tokenize", "/tokenize", "tokens"),
        )
        for route, path, key in routes:
            try:
                answer = await self._post(path, {"messages": _KNOWN})
            except (EngineRefused, EngineBroken):
                self._problems.append(Problem.RENDER_DISABLED)
                continue
            if answer.get(key):
                reasons = answer.get("reasoning_parser_kwargs", answer)
                if route == "render" and reasons is None:
                    self._problems.append(Problem.NO_REASONING_PARSER)
                return route
        return None

    async def _known_prompt(self, route: str | None) -> Prompt:
        """Return ids that the dummy messages do not render to."""
        if route is None:
            return Prompt(array("I", [1, 2, 3, 4, 5]))
        return Prompt(await self._rendered(route, {"messages": _KNOWN}))

    async def _rendered(self, route: str, body: dict[str, Any]) -> "array[int]":
        if route == "render":
            return array("I", (await self._post(f"{CHAT}/render", body))["token_ids"])
        return array("I", (await self._post("/tokenize", body))["tokens"])

    async def _way_in(self, prompt: Prompt) -> tuple[WayName, bool]:
        """Return the first way in that is honoured, and whether generate is."""
        can_generate = await self._generates(prompt)
        wanted = self._settings.way
        if wanted != "auto":
            tried = wanted in ("chat_prompt_token_ids", "kv_transfer")
            works = await self._honours(wanted, prompt) if tried else can_generate
            if not works or wanted == "text":
                self._problems.append(Problem.TOKEN_IN_IGNORED)
            return wanted, can_generate
        for way in ("chat_prompt_token_ids", "kv_transfer"):
            if await self._honours(way, prompt):
                return way, can_generate
        if can_generate:
            return "generate", True
        self._problems.append(Problem.TOKEN_IN_IGNORED)
        return "text", False

    async def _honours(self, way: str, prompt: Prompt) -> bool:
        ids = orjson.Fragment(prompt.json)
        given = {"prompt_token_ids": ids}
        field = given if way == "chat_prompt_token_ids" else {"kv_transfer_params": given}
        try:
            answer = await self._sampled({**field, "temperature": 0})
        except EngineRefused as error:
            if error.status not in (400, 404, 422):
                raise
            return False
        returned = answer.get("prompt_token_ids")
        if returned is None:
            self._problems.append(Problem.NO_TOKEN_IDS)
        return returned == prompt.ids.tolist()

    async def _sampled(self, more: dict[str, Any]) -> dict[str, Any]:
        body = {
            "messages": _DUMMY,
            "max_tokens": 1,
            "return_token_ids": True,
            "logprobs": True,
            "top_logprobs": 0,
        }
        return await self._post(CHAT, {**body, **more})

    async def _generates(self, prompt: Prompt) -> bool:
        body = {
            "token_ids": orjson.Fragment(prompt.json),
            "sampling_params": {"max_tokens": 1, "temperature": 0.0, "logprobs": 0},
            "return_token_ids": True,
        }
        try:
            answer = await self._post("/inference/v1/generate", body)
        except (EngineRefused, EngineBroken):
            return False
        return answer.get("prompt_token_ids") == prompt.ids.tolist()

    async def _logprobs(self, way: WayName, prompt: Prompt) -> None:
        given = {"prompt_token_ids": orjson.Fragment(prompt.json)}
        field: dict[str, Any] = {"kv_transfer_params": given} if way == "kv_transfer" else {}
        distances = []
        for temperature in (1.0, 2.0):
            try:
                answer = await self._sampled(
                    {**field, "temperature": temperature, "top_logprobs": 2, "seed": 1}
                )
                entry = answer["choices"][0]["logprobs"]["content"][0]
                top = sorted((other["logprob"] for other in entry["top_logprobs"]), reverse=True)
                distances.append(top[0] - top[1])
            except EngineRefused:
                return  # alternatives are switched off; the sampled token's logprob is not
            except (KeyError, IndexError, TypeError):
                self._problems.append(Problem.NO_LOGPROBS)
                return
        near, far = distances
        if near > 1e-3 and abs(far - near) < 0.25 * near:
            self._problems.append(Problem.RAW_LOGPROBS)

    async def _tools(self) -> None:
        try:
            await self._sampled({"tools": [_TOOL], "temperature": 0})
        except EngineRefused as error:
            if _NEEDS_PARSER in error.message:
                self._problems.append(Problem.NO_TOOL_PARSER)

    async def _prefix_cache(self) -> None:
        try:
            response = await self._client.open(
                f"{self._url}/metrics", None, limit_s=self._settings.small_s
            )
            async with response:
                metrics = await self._client.read(response, self._settings.small_s)
        except EngineError:
            return
        if b'enable_prefix_caching="False"' in metrics:
            self._problems.append(Problem.NO_PREFIX_CACHE)

    async def _template_hash(self, route: str | None) -> str | None:
        if route is None:
            return None
        try:
            ids = await self._rendered(route, {"messages": _KNOWN, "tools": [_TOOL]})
            bare = await self._rendered(route, {"messages": _DUMMY, "add_generation_prompt": False})
        except EngineRefused:
            return None  # a template without tools, or a very short context
        return _digest(ids.tobytes() + b"\0" + bare.tobytes())

    async def _tokenizer_hash(self) -> str | None:
        try:
            answer = await self._post("/tokenize", {"prompt": _TEXT, "add_special_tokens": False})
            return _digest(array("I", answer["tokens"]).tobytes())
        except (EngineRefused, EngineBroken, KeyError, TypeError):
            return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def end_ids(root: Any) -> frozenset[int]:
    """Return the ids that end a turn by the model's own files, where they lie on this machine."""
    found: set[int] = set()
    if not isinstance(root, str) or not Path(root).is_absolute():
        return frozenset()
    for name in ("generation_config.json", "config.json"):
        try:
            value = json.loads((Path(root) / name).read_text("utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        found |= {value} if isinstance(value, int) else set(value or ())
    return frozenset(found)
