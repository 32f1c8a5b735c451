"""Starts vLLM with the flags that exact recording needs, waits for it, and ends all of it.

vLLM is three processes that import everything, so a start takes most of a minute on a laptop and
minutes on a busy one: its log is turned into a few words of progress. All of its processes are in
one process group of their own, so none outlives the launcher's end.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .environment import find_python
from .launch_errors import LaunchError, hint
from .parsers import guess_parsers

Say = Callable[[str], None]
READY_S = 900.0
_STOP_S = 30.0
_STAGES = (
    ("Resolved architecture", "model found"),
    ("Initializing a V1 LLM engine", "engine process started"),
    ("Starting to load model", "loading the weights"),
    ("Loading weights took", "weights loaded"),
    ("init engine", "engine ready, starting the server"),
    ("Starting vLLM server", "server started"),
)


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start."""

    model: str
    """A folder, or a model's name."""
    cpu: bool = False
    """Use the CPU build, in an environment of its own if this one does not hold it."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    served_name: str | None = None
    """Name to serve under; None: the model's own."""
    tool_parser: str | None = None
    """None: guessed; `none`: no parser."""
    reasoning_parser: str | None = None
    """None: guessed; `none`: no parser."""
    max_model_len: int | None = None
    dtype: str | None = None
    kv_cache_gib: int = 1
    """Memory for the CPU build's cache."""
    dev_routes: bool = False
    """Routes that pause the engine and change its weights: never where a harness can reach them."""
    extra: tuple[str, ...] = ()
    """Further flags of vLLM; they come last, so they win."""
    python: Path | None = None
    """Interpreter of an environment that holds vLLM; None: found, or made."""
    environment: dict[str, str] = field(default_factory=dict)
    """Added to the server's environment variables."""


def flags(launch: Launch, port: int) -> list[str]:
    """Return the arguments of `vllm`."""
    guessed = guess_parsers(launch.model)
    tool = launch.tool_parser or guessed.tool
    reasoning = launch.reasoning_parser or guessed.reasoning
    out = ["serve", launch.model, "--host", launch.host, "--port", str(port)]
    # A model's generation_config would set sampling that nobody asked for.
    out += ["--generation-config", "vllm"]
    # Of the distribution that sampled; the default ignores the temperature.
    out += ["--logprobs-mode", "processed_logprobs"]
    out += ["--enable-scale-out", "--enable-prefix-caching"]
    if tool and tool != "none":
        out += ["--enable-auto-tool-choice", "--tool-call-parser", tool]
    if reasoning and reasoning != "none":
        out += ["--reasoning-parser", reasoning]
    if launch.served_name:
        out += ["--served-model-name", launch.served_name]
    if launch.max_model_len:
        out += ["--max-model-len", str(launch.max_model_len)]
    if launch.dtype:
        out += ["--dtype", launch.dtype]
    if launch.cpu:
        out += ["--enforce-eager"]  # compiling costs 40 s at every start
    return [*out, *launch.extra]


def command(launch: Launch, python: Path, port: int) -> list[str]:
    """Return the command line of the server."""
    if launch.cpu:
        # -P: this file's folder must not shadow modules of the server.
        start = [str(python), "-P", str(Path(__file__).with_name("vllm_cpu_launcher.py"))]
    else:
        start = [str(python), "-m", "vllm.entrypoints.cli.main"]
    return [*start, *flags(launch, port)]


def variables(launch: Launch) -> dict[str, str]:
    """Return the server's environment variables."""
    out = {**os.environ, "VLLM_NO_USAGE_STATS": "1"}
    if Path(launch.model).is_dir():
        out.setdefault("HF_HUB_OFFLINE", "1")
    if launch.cpu:
        out.setdefault("VLLM_CPU_KVCACHE_SPACE", str(launch.kv_cache_gib))
    if launch.dev_routes:
        out["VLLM_SERVER_DEV_MODE"] = "1"
    return out | launch.environment


class RunningEngine:
    """A server that answers; ended by `engine_running`."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url
        """Without `/v1`."""
        self.log: deque[str] = deque(maxlen=2000)
        self.start_s = 0.0
        """Seconds from the start to the first answer."""

    @property
    def pid(self) -> int:
        """The first process; the others are in its group."""
        return self._process.pid

    def wait(self) -> int:
        """Wait for the server's end and return its exit code."""
        return self._process.wait()

    @property
    def is_alive(self) -> bool:
        """Whether the first process still runs."""
        return self._process.poll() is None


@contextmanager
def engine_running(
    launch: Launch,
    *,
    say: Say = lambda _: None,
    ready_s: float = READY_S,
    on_line: Callable[[str], None] | None = None,
) -> Iterator[RunningEngine]:
    """Start vLLM, give it once it answers, and end every process of it.

    `say` gets a line for each stage, `on_line` every line of the server's log. Raises LaunchError.
    """
    port = launch.port or _free_port(launch.host)
    _check_free(launch.host, port)
    python = launch.python or find_python(cpu=launch.cpu, say=say)
    started = time.monotonic()
    process = subprocess.Popen(
        command(launch, python, port),
        env=variables(launch),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=sys.platform != "win32",
        preexec_fn=_end_with_our_end if sys.platform == "linux" else None,
    )
    host = "127.0.0.1" if launch.host in ("0.0.0.0", "::") else launch.host
    running = RunningEngine(process, f"http://{f'[{host}]' if ':' in host else host}:{port}")
    reader = threading.Thread(
        target=_read_log, args=(process, running, say, on_line, started), daemon=True
    )
    reader.start()
    try:
        _wait_until_ready(running, started + ready_s, reader)
        running.start_s = time.monotonic() - started
        say(f"[{running.start_s:5.1f} s] ready at {running.url}/v1")
        yield running
    finally:
        stop(process)
        reader.join(timeout=5)
        if process.stdout is not None:
            process.stdout.close()


def _end_with_our_end() -> None:
    """In the server, before it is one: let Linux end it when we are killed (prctl(2))."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _check_free(host: str, port: int) -> None:
    """Raise LaunchError where another server has the port: it would be taken for the engine."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # As servers bind: the last one's connections, still closing, are no hindrance.
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise LaunchError(
            f"{host}:{port} cannot be listened on ({error.strerror or error}): "
            "end what uses it, or choose another port with --port"
        ) from error


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _read_log(
    process: subprocess.Popen[str],
    running: RunningEngine,
    say: Say,
    on_line: Callable[[str], None] | None,
    started: float,
) -> None:
    stages = list(_STAGES)
    assert process.stdout is not None
    for line in process.stdout:
        line = line.rstrip()
        running.log.append(line)
        if on_line is not None:
            on_line(line)
        for position, (part, words) in enumerate(stages):
            if part in line:
                del stages[: position + 1]
                say(f"[{time.monotonic() - started:5.1f} s] {words}")
                break


def _wait_until_ready(running: RunningEngine, deadline: float, reader: threading.Thread) -> None:
    url = f"{running.url}/health"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if not running.is_alive:
            reader.join(timeout=5)
            raise LaunchError(_why(running, f"the engine ended with code {running.wait()}"))
        try:
            with opener.open(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.5)
    raise LaunchError(_why(running, "the engine does not answer in time"))


def _why(running: RunningEngine, what: str) -> str:
    lines = [line for line in running.log if line]
    advice = hint(lines)
    tail = "\n".join(f"    {line[:300]}" for line in lines[-20:])
    said = f"{what}. {advice[0].upper()}{advice[1:]}." if advice else f"{what}."
    return f"{said} Its last words:\n{tail}"


def stop(process: subprocess.Popen[str], limit_s: float = _STOP_S) -> None:
    """End a server and every process of its group; returns when none is left."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)  # the first one ends the others in order
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
    if sys.platform != "win32":
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what outlived it, or did not listen
        except (ProcessLookupError, PermissionError):
            pass
    process.wait()


def parse_extra(words: Sequence[str]) -> tuple[str, ...]:
    """Return vLLM's own flags out of what stood behind `--`."""
    return tuple(word for word in words if word != "--")
