"""What a command shows: data on stdout, progress, notes and errors on stderr."""

from __future__ import annotations

import functools
import logging
import os
import shlex
import signal
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from ecokv_cli.errors import EcokvError
from ecokv_cli.studies.typeset import rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Arguments = ParamSpec("Arguments")

WIDE = 200
"""Columns of a table on a pipe, where nothing should be cut."""


class Screen:
    """Output of one command."""

    def __init__(self, *, quiet: bool, verbose: bool, as_json: bool) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.as_json = as_json
        self.out = _Out(
            width=None if sys.stdout.isatty() else WIDE, highlight=False, emoji=False, color_system=_colours()
        )
        self.err = _stderr()
        self.hears = logging.INFO
        log = logging.getLogger("ecokv_cli")
        log.handlers, log.propagate = [_Lines(self)], False
        log.setLevel(logging.INFO)

    def say(self, text: str) -> None:
        """Print one line of data on stdout, unless JSON was asked for."""
        if not self.as_json:
            self.out.print(text, markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Say something the user should know, unless quiet."""
        if not self.quiet:
            self.err.print(text, style="yellow", markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        """Say something only a verbose run shows."""
        if self.verbose and not self.quiet:
            self.err.print(text, style="dim", markup=False, soft_wrap=True)

    def show(self, tables: Sequence[RichTable]) -> None:
        """Print tables on stdout, unless JSON was asked for."""
        if not self.as_json:
            for each in tables:
                self.out.print(each)

    def finish(self, summary: dict[str, Any], closing: str) -> None:
        """With ``--json`` print the summary on stdout; then a last line on stderr."""
        if self.as_json:
            import json

            sys.stdout.write(json.dumps(summary, ensure_ascii=False, indent=1) + "\n")
        if closing and not self.quiet:
            self.err.print(closing, markup=False, soft_wrap=True)

    @contextmanager
    def progress(self) -> Iterator[Callable[[str, int, int], None]]:
        """A progress display on stderr; call it with a phase, how much is done, and how much there is.

        Where there is no terminal a verbose run says one line as each phase begins.
        """
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        hidden = self.quiet or not self.err.is_terminal
        with Progress(*columns, console=self.err, transient=True, disable=hidden) as display:
            tasks: dict[str, Any] = {}

            def show(phase: str, done: int, total: int) -> None:
                if phase not in tasks:
                    tasks[phase] = display.add_task(phase, total=total)
                    if hidden:
                        self.detail(phase)
                display.update(tasks[phase], completed=done, total=total)

            yield show


def _stderr() -> Console:
    return Console(stderr=True, highlight=False, emoji=False, color_system=_colours())


def _colours() -> Literal["auto"] | None:
    """No styles at all under NO_COLOR, of which rich by itself leaves out the colours but not bold and dim."""
    return None if os.environ.get("NO_COLOR") else "auto"


class _Out(Console):
    """Standard output, which may be a pipe whose reader goes away; `guarded` then ends the command quietly."""

    def on_broken_pipe(self) -> None:
        """Let the error through: rich itself would end the process with status 1."""
        raise BrokenPipeError


class _Lines(logging.Handler):
    """What the rooms log, as lines on the screen."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self.screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.screen.note(record.getMessage())
        elif record.levelno >= self.screen.hears and not self.screen.quiet:
            self.screen.err.print(record.getMessage(), markup=False, soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], keys: int = 1) -> list[RichTable]:
    """A table for the screen: words to the left, numbers to the right; a cell may be a text with a style.

    Where the terminal is too narrow for all columns they are shown in several tables below each other, each beginning
    with the first `keys` columns; a number is never broken.
    """
    cells = [
        [
            value if isinstance(value, Text) else Text(_cell(value, name))
            for value, name in zip(row, columns, strict=True)
        ]
        for row in rows
    ]
    widths = [max(len(name), *(len(row[i]) for row in cells)) + 2 if cells else 0 for i, name in enumerate(columns)]
    room = (Console().width if sys.stdout.isatty() else WIDE) - sum(widths[:keys])
    parts: list[list[int]] = [[]]
    for i in range(keys, len(columns)):
        if parts[-1] and sum(widths[k] for k in [*parts[-1], i]) > room:
            parts.append([])
        parts[-1].append(i)
    numeric = [all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
    shown = []
    for number, part in enumerate(parts):
        chosen = [*range(keys), *part]
        block = RichTable(
            title=Text(title) if title and number == 0 else None, title_justify="left", box=None, pad_edge=False,
            show_header=any(columns),
        )  # fmt: skip
        for i in chosen:
            block.add_column(
                Text(columns[i]), justify="right" if numeric[i] else "left", overflow="fold", no_wrap=numeric[i]
            )
        for row in cells:
            block.add_row(*(row[i] for i in chosen))
        shown.append(block)
    return shown


def _cell(value: Any, column: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, float) and column != "budget":  # a share of the prompt is shown as it was asked for
        return rounded(value)
    return str(value)


def command_line() -> str:
    """The command as typed, for manifests and reports."""
    return shlex.join(["ecokv", *sys.argv[1:]])


def guarded(function: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Turn errors of a command into one line on stderr and an exit status."""

    @functools.wraps(function)
    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
                signal.signal(number, _terminated)
        try:
            function(*arguments, **options)
            sys.stdout.flush()
        except typer.Exit:
            raise
        except (KeyboardInterrupt, _Terminated) as stop:
            word, status = ("terminated", stop.code) if isinstance(stop, _Terminated) else ("interrupted", 130)
            _complain(f"{word}; {_kept(stop)}")
            raise typer.Exit(status) from None
        except BrokenPipeError:
            # The reader went away; keep the interpreter from complaining when it flushes.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            if options.get("debug"):
                raise
            _complain(_explain(error))
            raise typer.Exit(error.exit_status if isinstance(error, EcokvError) else 1) from None

    return run


def _explain(error: Exception) -> str:
    """What an error says, on one line."""
    if isinstance(error, EcokvError):
        return str(error)
    if _is_out_of_memory(error):
        return "out of memory; give a smaller image (--max-pixels) or a shorter prompt"
    if isinstance(error, OSError) and error.strerror:
        where = error.filename or "input or output"
        return f"{where}: {error.strerror}; see that it can be read and written, or give another path"
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:300]
    return (
        f"{type(error).__name__}: {text} ({Path(place.filename).name}, line {place.lineno}); "
        f"this was not foreseen, please report it with what --debug shows"
    )


def _is_out_of_memory(error: Exception) -> bool:
    """Python's own error, or torch's on a GPU and on a CPU; torch may not be imported here to ask."""
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text))
    )


def _complain(text: str) -> None:
    _stderr().print(f"ecokv: error: {text}", markup=False, soft_wrap=True)


class _Terminated(SystemExit):
    """A signal ended the process."""

    code: int


def _terminated(number: int, _: Any) -> None:
    raise _Terminated(128 + number)


def _kept(stop: BaseException) -> str:
    """What is left of the work: as a note on the exception tells, or nothing."""
    notes = getattr(stop, "__notes__", [])
    if notes:
        return f"{notes[0]}; run the same command again to go on"
    return "nothing unfinished was kept, run the same command again"
