"""What the commands write: results to stdout, complaints and logs to stderr.

On a terminal results are tables and trees; in a pipe they are plain lines, whole and without
frames. What a model or a harness wrote never reaches the terminal as it came: control characters
are spelled out, so that text can neither move the cursor nor forge a line, and rich's markup is
not read in it.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer

_NAMED = {"\n": "\n", "\t": "\t"}


def this_command() -> str:
    """Return what a user types to call us: our name where PATH finds it, else its path."""
    called = Path(sys.argv[0])
    if shutil.which("budwood") or called.stem != "budwood":
        return "budwood"
    try:
        return str(called.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(called.absolute())


def fail(message: str, code: int = 1) -> NoReturn:
    """Say what went wrong on stderr and end with a status."""
    typer.echo(f"budwood: {safe(message)}", err=True)
    raise typer.Exit(code)


def note(message: str) -> None:
    """Say something beside the result, on stderr."""
    typer.echo(safe(message), err=True)


def safe(text: str, *, one_line: bool = False) -> str:
    """Return text that a terminal shows and does not obey: control characters spelled out."""
    shown = "".join(
        char if char.isprintable() else _NAMED.get(char) or _spelled(char) for char in text
    )
    return shown.replace("\n", "⏎").replace("\t", " ") if one_line else shown


def _spelled(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def short(text: str, width: int) -> str:
    """Return the beginning of a text as one safe line of at most `width` characters."""
    line = safe(text[: 4 * width], one_line=True)
    return line if len(line) <= width else line[: width - 1] + "…"


class Screen:
    """Stdout, drawn for a terminal or plain for a pipe."""

    def __init__(self) -> None:
        """Look at stdout once."""
        self.is_terminal = sys.stdout.isatty()
        self._console: Any = None

    def _rich(self) -> Any:
        if self._console is None:
            from rich.console import Console

            self._console = Console(highlight=False, markup=False, soft_wrap=False)
        return self._console

    def line(self, text: str = "", style: str | None = None) -> None:
        """Write text of one or more lines; a terminal shows the style."""
        if not self.is_terminal or style is None:
            typer.echo(safe(text))
            return
        from rich.text import Text

        self._rich().print(Text(safe(text), style=style))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Write a table: framed on a terminal, tab-separated with a header in a pipe."""
        if not self.is_terminal:
            typer.echo("\t".join(columns))
            for row in rows:
                typer.echo("\t".join(safe(cell, one_line=True) for cell in row))
            return
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(safe(cell, one_line=True)) for cell in row))
        self._rich().print(table)

    def tree(self, lines: Iterable[tuple[int, str]]) -> None:
        """Write (depth, text) pairs as a tree; in a pipe, two spaces a level."""
        if not self.is_terminal:
            for depth, text in lines:
                typer.echo("  " * depth + safe(text, one_line=True))
            return
        from rich.text import Text
        from rich.tree import Tree

        path: list[Tree] = []
        for depth, text in lines:
            label = Text(safe(text, one_line=True))
            if depth == 0:
                if path:
                    self._rich().print(path[0])
                path = [Tree(label, guide_style="dim")]
            else:
                del path[depth:]
                path.append(path[-1].add(label))
        if path:
            self._rich().print(path[0])


class _CurrentStderr:
    """Stderr as it is when a line is written: a cached logger outlives a redirection."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure_logs(*, level: str = "INFO") -> None:
    """Send structured logs to stderr: for people on a terminal, JSON otherwise."""
    import structlog

    is_terminal = sys.stderr.isatty()
    # Plain tracebacks: the pretty ones show local variables, which hold prompts and keys.
    renderer: Any = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if is_terminal
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if is_terminal else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(_CurrentStderr()),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
