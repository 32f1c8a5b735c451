"""The programs under measurement: scripted engine, nginx and the proxy, each a process on a core.

Each context manager yields a `Server` that answers, and ends the process it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

NO_NGINX = "nginx is missing (Debian: apt-get install nginx-light); ratios to it are left out"


class NotUpError(RuntimeError):
    """A server ended before it answered, or never answered."""


@dataclass(slots=True)
class Server:
    """A running process."""

    url: str
    """Without `/v1`."""
    process: subprocess.Popen[bytes]
    log: Path
    admin_url: str = ""
    admin_secret: str = field(default="", repr=False)

    @property
    def pid(self) -> int:
        """The process, whose tree is accounted."""
        return self.process.pid

    def last_lines(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, patience_s: float = 10.0) -> None:
        """End it in order."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self.process.wait(patience_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def _signal(self, number: int) -> None:
        """Tell the whole group: strace lets no signal through to what it traces."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cores() -> tuple[int, int]:
    """Return the core of clients and engine, and that of the server under test."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def make_realtime(pids: Sequence[int]) -> None:
    """Put every thread of these processes before all others (root): for a busy machine.

    Else the scheduler is what gets measured. Only for runs of a few seconds each.
    """
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(5))


def start(
    command: Sequence[str],
    url: str,
    log: Path,
    *,
    core: int | None = None,
    health: str = "/health",
    patience_s: float = 30.0,
    env: dict[str, str] | None = None,
) -> Server:
    """Start a process on a core, and return once it answers; raises NotUpError."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            list(command),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | (env or {}),
            start_new_session=True,
            preexec_fn=None if core is None else (lambda: os.sched_setaffinity(0, {core})),
        )
    server = Server(url, process, log)
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise NotUpError(f"{command[0]} ended with {process.returncode}: {server.last_lines()}")
        with contextlib.suppress(URLError, OSError), urlopen(url + health, timeout=2):
            return server
        time.sleep(0.05)
    server.kill()
    raise NotUpError(f"{command[0]} did not answer in {patience_s} s: {server.last_lines()}")


@contextlib.contextmanager
def scripted_engine(folder: Path, *, core: int | None = None, **options: Any) -> Iterator[Server]:
    """Yield the scripted engine; `options` are its command's (`max_model_len=...`)."""
    port = free_port()
    command = [sys.executable, "-m", "budwood.proxy.testing.scripted_engine", "--port", str(port)]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    server = start(command, f"http://127.0.0.1:{port}", folder / "engine.log", core=core)
    try:
        yield server
    finally:
        server.stop()


NGINX_CONF = """
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid;
error_log {folder}/nginx.error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  client_max_body_size 256m; client_body_buffer_size 4m; keepalive_requests 1000000;
  upstream engine {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 1h;
    }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, upstream: str, *, core: int | None = None) -> Iterator[Server | None]:
    """Yield nginx as a plain pass-through to `upstream`; None where it is not installed."""
    binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if binary is None:
        print(NO_NGINX, file=sys.stderr)
        yield None
        return
    port = free_port()
    conf = folder / "nginx.conf"
    conf.write_text(
        NGINX_CONF.format(folder=folder, upstream=upstream.rsplit(":", 1)[1], port=port)
    )
    command = [binary, "-p", str(folder), "-c", str(conf)]
    server = start(command, f"http://127.0.0.1:{port}", folder / "nginx.log", core=core)
    try:
        yield server
    finally:
        server.stop()


def start_proxy(
    folder: Path,
    engine: str,
    store: str,
    *,
    port: int | None = None,
    core: int | None = None,
    env: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Server:
    """Start `budwood proxy`, authentication on, recording to `store`; the caller stops it.

    `prefix` is a command to run it under (strace).
    """
    port = port or free_port()
    admin_port = free_port()
    secret = "bench-admin-secret-of-this-run-only"
    command = [
        *prefix, sys.executable, "-m", "budwood", "proxy", "--engine", engine, "--store", store,
        "--port", str(port), "--admin-port", str(admin_port), *options,
    ]  # fmt: skip
    given = {"BUDWOOD_PROXY__ADMIN_SECRET": secret, **(env or {})}
    server = start(command, f"http://127.0.0.1:{port}", folder / "proxy.log", core=core, env=given)
    server.admin_url = f"http://127.0.0.1:{admin_port}"
    server.admin_secret = secret
    return server


@contextlib.contextmanager
def running_proxy(folder: Path, engine: str, store: str, **options: Any) -> Iterator[Server]:
    """Yield the proxy as `start_proxy` starts it."""
    server = start_proxy(folder, engine, store, **options)
    try:
        yield server
    finally:
        server.stop()


def open_rollout(proxy: Server, run: str, **labels: str) -> tuple[str, str]:
    """Open a rollout by the admin plane; return its id and its secret."""
    answer = _admin(proxy, "/admin/rollouts", {"run": run, "labels": labels})
    return answer["rollout_id"], answer["secret"]


def _admin(proxy: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = Request(
        proxy.admin_url + path,
        data=json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {proxy.admin_secret}",
            "Content-Type": "application/json",
        },
    )
    with urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder for logs and stores, on the disk where the system keeps scratch files."""
    with tempfile.TemporaryDirectory(prefix="budwood-bench-") as folder:
        yield Path(folder)
