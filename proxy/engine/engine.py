"""The engine as the proxy sees it: one object for all replicas and all ways in."""

import asyncio
import contextlib
import random
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

import aiohttp

from ..call import Delta
from ..wire import EventTooLarge
from .client import Client
from .errors import (
    EngineBroken,
    EngineChanged,
    EngineError,
    EngineRefused,
    EngineUnreachable,
    RenderRefused,
)
from .info import EngineInfo, Problem
from .probe import probe
from .repair import Repairs
from .replicas import Replica, Replicas, is_retried, pauses
from .reply import MALFORMED, Collected, EngineReply
from .request import EngineCall
from .settings import EngineSettings
from .ways import CHAT, WayIn, way_named

_T = TypeVar("_T")


class EngineStream:
    """One answer as it comes: batches of deltas, then `reply`.

    Iterating raises EngineBroken where the answer is not whole, with what came as its `partial`.
    """

    def __init__(
        self, call: EngineCall, collected: Collected, batches: AsyncIterator[list[Delta]]
    ) -> None:
        self._call = call
        self._collected = collected
        self._batches = batches
        self._reply: EngineReply | None = None

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        return self._run()

    async def _run(self) -> AsyncIterator[list[Delta]]:
        try:
            async for batch in self._batches:
                yield batch
            self._reply = self._known(self._collected.finished())
        except EngineError as error:
            error.partial = self.partial()
            raise
        except EventTooLarge as error:
            broken = EngineBroken("bad_event", str(error))
            broken.partial = self.partial()
            raise broken from error

    @property
    def is_whole(self) -> bool:
        """Whether all of the answer has been read."""
        return self._collected.is_whole

    @property
    def reply(self) -> EngineReply:
        """The whole reply; only after the last batch."""
        if self._reply is None:
            raise RuntimeError("the answer has not been read to its end")
        return self._reply

    def partial(self) -> EngineReply:
        """What came so far, never to be trained."""
        return self._known(self._collected.partial())

    def _known(self, reply: EngineReply) -> EngineReply:
        reply.temperature = self._call.fields.get("temperature")
        return reply


class Engine:
    """Samples and renders on one or more replicas; open while entered, useful after `probe`."""

    def __init__(self, settings: EngineSettings, rng: random.Random | None = None) -> None:
        self.settings = settings
        self._rng = rng or random.Random()
        self._client = Client(settings)
        self._replicas = Replicas(settings)
        self._info: EngineInfo | None = None
        self._way: WayIn | None = None
        self._repairs = Repairs()
        self.on_change: Callable[[EngineInfo], None] = lambda _: None
        """Told what the engine is once another one has taken its place."""

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)

    @property
    def info(self) -> EngineInfo:
        """What the last probe found."""
        if self._info is None:
            raise RuntimeError("the engine has not been probed")
        return self._info

    @property
    def is_probed(self) -> bool:
        """Whether `info` is known."""
        return self._info is not None

    async def probe(self) -> EngineInfo:
        """Find out what the engine is and can; raises EngineError if no replica answers."""
        found = await asyncio.gather(
            *(probe(self._client, replica.url, self.settings) for replica in self._replicas.all),
            return_exceptions=True,
        )
        info: EngineInfo | None = None
        failure: EngineError | None = None
        differs = False
        for replica, result in zip(self._replicas.all, found, strict=True):
            if isinstance(result, EngineInfo):
                info = info or result
                if _identity(result) == _identity(info):
                    self._replicas.mark_up(replica)
                    replica.is_proved = True
                else:  # another model, tokenizer or template: no lane may come to it
                    self._replicas.mark_down(replica)
                    differs = True
            elif isinstance(result, EngineError):
                self._replicas.mark_down(replica)
                failure = result
            else:
                raise result
        if info is None:
            raise failure or EngineUnreachable("no replica answers")
        if failure is not None:
            info = info.with_problems(Problem.REPLICA_DOWN)
        if differs:
            info = info.with_problems(Problem.REPLICAS_DIFFER)
        self._info = info
        self._way = way_named(info.way_in, self.settings)
        return info

    async def look(self) -> None:
        """Ask every replica whether it lives, so that one that was gone is known for unknown."""
        for replica in self._replicas.all:
            try:
                await self._client.json(f"{replica.url}/health", limit_s=self.settings.small_s)
            except EngineUnreachable:
                self._replicas.mark_down(replica)
            except EngineError:
                continue

    async def met(self) -> None:
        """Find out what came back where nothing is left of what was known; else cheap.

        To be awaited before a call is prepared. Never raises: the call itself will say what is up.
        """
        if self._info is None or any(replica.is_proved for replica in self._replicas.all):
            return
        for replica in self._replicas.all:
            with contextlib.suppress(EngineError):
                await self._prove(replica)

    async def _prove(self, replica: Replica) -> None:
        """Find out what came back; raises EngineError where it is not what calls are made for."""
        async with replica.proving:
            if replica.is_proved:
                return
            info = await probe(self._client, replica.url, self.settings)
            if self._info is not None and _identity(info) != _identity(self._info):
                if any(other.is_proved for other in self._replicas.all):
                    raise EngineUnreachable("a replica came back as another engine than the others")
                replica.is_proved = True
                self._info, self._way = info, way_named(info.way_in, self.settings)
                self.on_change(info)
                raise EngineChanged("the engine came back as another one; ask again")
            replica.is_proved = True

    async def is_healthy(self) -> bool:
        """Whether any replica answers."""
        for replica in self._replicas.ordered(""):
            try:
                await self._client.json(f"{replica.url}/health", limit_s=self.settings.connect_s)
            except EngineRefused as error:
                if error.status < 500:
                    return True
            except EngineError:
                continue
            else:
                return True
        return False

    # -- rendering

    async def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        template: dict[str, Any],
        add_generation_prompt: bool = True,
    ) -> "array[int]":
        """Return the ids of messages, as the engine would read them.

        Raises RenderRefused where the engine refuses the messages.
        """
        body: dict[str, Any] = {"model": self.info.served_model, "messages": messages, **template}
        body["add_generation_prompt"] = add_generation_prompt
        if tools:
            body["tools"] = tools
        route = "/tokenize" if self.info.render_route == "tokenize" else f"{CHAT}/render"
        ids = _ids_of(await self._ask(route, body), route)
        if not ids:
            raise EngineBroken("bad_event", f"{route} returned no ids")
        return ids

    async def tokenize(self, text: str) -> "array[int]":
        """Return the ids of a text; no special tokens are added."""
        body = {"model": self.info.served_model, "prompt": text, "add_special_tokens": False}
        return _ids_of(await self._ask("/tokenize", body), "/tokenize")

    async def _ask(self, route: str, body: dict[str, Any]) -> Any:
        async def ask(replica: Replica) -> Any:
            return await self._client.json(replica.url + route, body, limit_s=self.settings.small_s)

        try:
            return await self._with_retries("", ask)
        except EngineRefused as error:
            raise RenderRefused(
                error.status, error.message,
                param=error.param, retry_after_s=error.retry_after_s, body=error.body,
            ) from error  # fmt: skip

    # -- calls

    @asynccontextmanager
    async def call(self, call: EngineCall) -> AsyncIterator[EngineStream]:
        """Send a call and give its answer; leaving early closes the connection, which aborts it.

        A try that failed is repeated only here, before anything of an answer could be relayed.
        """
        way = self._way
        assert way is not None, "the engine has not been probed"
        if call.prompt is None and way.name == "generate":
            way = way_named("text", self.settings)

        async def open_call(replica: Replica) -> tuple[str, aiohttp.ClientResponse]:
            return replica.url, await self._open(call, way, replica.url)

        url, response = await self._with_retries(call.lane_id, open_call)
        collected = Collected(call.prompt, wants_ids=call.wants_ids, keep_raw=call.keep_raw)
        collected.has_labels = bool(call.fields.get("return_tokens_as_token_ids"))
        stream = EngineStream(
            call, collected, way.batches(call, collected, self._client, url, response)
        )
        try:
            yield stream
        finally:
            if collected.is_whole:
                await self._client.settle(response)
            else:
                response.close()

    async def _open(self, call: EngineCall, way: WayIn, url: str) -> aiohttp.ClientResponse:
        """Send a call; a field that the engine does not know is dropped once and for good."""
        limit_s = self.settings.first_byte_s
        self._repairs.apply(call)
        while True:
            body = await way.body(call, self._client, url)
            try:
                return await self._client.open(
                    url + way.path, body, call_id=call.call_id, limit_s=limit_s
                )
            except EngineRefused as error:
                if not self._repairs.learn(call, error):
                    raise

    async def _with_retries(self, lane_id: str, attempt: Callable[[Replica], Awaitable[_T]]) -> _T:
        waits = pauses(self.settings, self._rng)
        while True:
            failure: EngineError | None = None
            for replica in self._replicas.ordered(lane_id):
                try:
                    if not replica.is_proved:
                        await self._prove(replica)
                    result = await attempt(replica)
                except EngineError as error:
                    if not is_retried(error):
                        raise
                    failure = error
                    if isinstance(error, EngineRefused):
                        break  # busy, not gone: its cache holds the lane
                    self._replicas.mark_down(replica)
                else:
                    self._replicas.mark_up(replica)
                    return result
            assert failure is not None
            pause = next(waits, None)
            after = getattr(failure, "retry_after_s", None) or 0.0
            if pause is None or after > self.settings.backoff_max_s:
                raise failure
            await asyncio.sleep(max(pause, after))


def _ids_of(answer: Any, route: str) -> "array[int]":
    try:
        return array("I", answer.get("token_ids") or answer.get("tokens") or ())
    except MALFORMED as error:
        raise EngineBroken("bad_event", f"{route} returned no ids: {error!r}") from error


def _identity(info: EngineInfo) -> tuple[object, ...]:
    return (
        info.version, info.served_model, info.max_model_len, info.way_in, info.template_hash,
        info.tokenizer_hash,
    )  # fmt: skip
