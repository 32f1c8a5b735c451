"""A session that grows: what one turn costs at a depth, in CPU seconds of each process."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from .accounting import cpu_s
from .answers import Ask, chat_body, filler, http_request, read_answer
from .connection import Connection, connect

UNTIMED_TURNS = 6
"""The whole render of the first turn, and the turns whose suffix is audited by whole renders."""

BYTES_A_TOKEN = 1.93
"""Of the filler text, as the scripted engine's tokenizer cuts it."""
TOKENS_A_TURN = 200


@dataclass(frozen=True, slots=True)
class TurnCost:
    """Medians over the timed turns."""

    n_prompt: int
    proxy_ms: float
    """CPU of the proxy."""
    engine_ms: float
    """CPU of the engine process."""
    first_ms: float
    """Time to the first event."""

    @property
    def both_ms(self) -> float:
        """CPU of both: the proxy moves work between them."""
        return self.proxy_ms + self.engine_ms


async def turn_cost(
    base: str, key: str, *, n_tokens: int, turns: int, proxy_pid: int, engine_pid: int
) -> TurnCost:
    """Return the cost of a turn of a session that starts with about `n_tokens` prompt tokens."""
    ask = Ask(stream=True, chunks=64, asks_ids=False)
    grown = (UNTIMED_TURNS + turns) * TOKENS_A_TURN // 2
    text = filler(int((n_tokens - grown) * BYTES_A_TOKEN), 1)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a test."},
        {"role": "user", "content": f"{text} {ask.marker(0)}"},
    ]
    connection = await connect(base)
    costs: list[tuple[float, float, float]] = []
    n_prompt = 0
    for turn in range(UNTIMED_TURNS + turns):
        request = http_request(base, key, chat_body(ask, messages))
        before = cpu_s([proxy_pid]), cpu_s([engine_pid])
        await connection.send(request)
        after = cpu_s([proxy_pid]), cpu_s([engine_pid])
        answer = _checked(connection)
        n_prompt = (answer.usage or {}).get("prompt_tokens", 0)
        if turn >= UNTIMED_TURNS:
            spent = (after[0] - before[0]) * 1e3, (after[1] - before[1]) * 1e3
            costs.append((*spent, connection.first_ms))
        tool_like = f"{filler(200, turn + 2)} {ask.marker(turn + 1)}"
        messages.append({"role": "assistant", "content": answer.text})
        messages.append({"role": "user", "content": tool_like})
    connection.abort()
    proxy, engine, first = zip(*costs, strict=True)
    return TurnCost(
        n_prompt, statistics.median(proxy), statistics.median(engine), statistics.median(first)
    )


def _checked(connection: Connection) -> Any:
    answer = read_answer(bytes(connection.body), stream=True)
    if connection.status != 200 or answer.problems:
        said = bytes(connection.body[:300])
        raise RuntimeError(f"status {connection.status}: {answer.problems} {said!r}")
    return answer
