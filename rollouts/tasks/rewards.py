"""The reward files that a verifier leaves → numbers, or what is wrong with them.

`reward.json` (an object of numbers) wins over `reward.txt` (one number), as in Harbor. A file that
is missing, empty, unreadable or not finite is no zero: nobody has judged.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

REWARD = "reward"
"""The key that counts where several are given."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf(inity)?|nan)", re.IGNORECASE)


class BadReward(ValueError):
    """No reward can be read; `cause` is its code."""

    def __init__(self, cause: str, text: str) -> None:
        """Keep the code and the words."""
        super().__init__(text)
        self.cause = cause

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Pickle by what it was made of."""
        return type(self), (self.cause, str(self))


def read_rewards(reward_json: bytes | None, reward_txt: bytes | None) -> dict[str, float]:
    """Return all rewards by key, each finite; raises BadReward. None: no such file."""
    if reward_json is not None:
        return _from_json(_text("reward.json", reward_json))
    if reward_txt is not None:
        return {REWARD: _from_text(_text("reward.txt", reward_txt))}
    raise BadReward("reward_missing", "the verifier left neither reward.json nor reward.txt")


def pick(rewards: Mapping[str, float], name: str | None = None) -> float:
    """Return the reward that counts: the one named, else `reward`, else the only one.

    Raises BadReward where that names none.
    """
    if name is not None:
        if name in rewards:
            return rewards[name]
        raise BadReward("reward_missing", f"there is no reward {name!r}, only {_keys(rewards)}")
    if REWARD in rewards:
        return rewards[REWARD]
    if len(rewards) == 1:
        return next(iter(rewards.values()))
    raise BadReward(
        "reward_unnamed", f"which reward counts? Name one for the run: {_keys(rewards)}"
    )


def _text(file: str, content: bytes) -> str:
    try:
        text = content.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise BadReward("reward_unreadable", f"{file} is not UTF-8") from error
    if not text:
        raise BadReward("reward_empty", f"{file} is empty")
    return text


def _from_text(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise BadReward("reward_unreadable", f"reward.txt wants one number, found {text[:60]!r}")
    return _finite("reward.txt", float(text))


def _from_json(text: str) -> dict[str, float]:
    try:
        rewards = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadReward("reward_unreadable", f"reward.json is not JSON: {error}") from error
    if not isinstance(rewards, dict):
        text = f"reward.json wants an object of numbers, found {text[:60]!r}"
        raise BadReward("reward_unreadable", text)
    if not rewards:
        raise BadReward("reward_empty", "reward.json holds no reward")
    return {key: _number(key, value) for key, value in rewards.items()}


def _number(key: str, value: object) -> float:
    if not isinstance(value, int | float):
        text = f"reward.json wants a number for {key!r}, found {value!r:.60}"
        raise BadReward("reward_unreadable", text)
    try:
        return _finite(f"reward.json's {key!r}", float(value))
    except OverflowError as error:
        raise BadReward("reward_not_finite", f"reward.json's {key!r} is too large") from error


def _finite(where: str, value: float) -> float:
    if not math.isfinite(value):
        raise BadReward("reward_not_finite", f"{where} is {value}, which is no reward")
    return value


def _keys(rewards: Mapping[str, float]) -> str:
    return ", ".join(sorted(rewards))
