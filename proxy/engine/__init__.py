"""The engine layer: puts a prompt in ids to vLLM, or text to any server like it, and reads it back.

    EngineCall ──▶ way in (ids by chat, by generate, or as text) ──▶ replica
                                                                        │ bytes
    batches of Delta ◀── stream (each event parsed once) ◀──────────────┘
    EngineReply: message, ids, logprobs, and whether all of it is exact

It may use `call` (requests and deltas) and `wire` (bytes to events).
It never knows lanes, rollouts or the store beyond their ids.
"""

from .engine import Engine, EngineStream
from .errors import EngineBroken, EngineError, EngineRefused, EngineUnreachable, RenderRefused
from .exactness import EXPLANATIONS, Inexact, exactness
from .info import ADVICE, EngineInfo, Problem
from .prompt import Prompt
from .reply import EngineReply
from .request import EngineCall, build_call
from .settings import EngineSettings, WayName
from .ways import WayIn

__all__ = [
    "ADVICE",
    "EXPLANATIONS",
    "Engine",
    "EngineBroken",
    "EngineCall",
    "EngineError",
    "EngineInfo",
    "EngineRefused",
    "EngineReply",
    "EngineSettings",
    "EngineStream",
    "EngineUnreachable",
    "Inexact",
    "Problem",
    "Prompt",
    "RenderRefused",
    "WayIn",
    "WayName",
    "build_call",
    "exactness",
]
