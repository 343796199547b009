"""The output of a command: tables and lines for people, or one JSON document for programs."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpckit.report.terminal.fitting_columns import fitting_cells
from hpckit.text.json_values import plain
from hpckit.text.quantities import clean as clean
from hpckit.text.quantities import count as count
from hpckit.text.quantities import decimal as decimal
from hpckit.text.quantities import listing as listing
from hpckit.text.quantities import size as size
from hpckit.text.quantities import speed as speed
from hpckit.text.quantities import took as took

PIPE_WIDTH = 200  # columns if there is no terminal, as programs prefer long lines
_NAME = 12  # the number of columns for the name of a fact

Cell = str | Text


class CommandOutput:
    """The streams of a command. Results go to standard output, all else to standard error."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._out, self._err = _console(sys.stdout), _console(sys.stderr)

    @property
    def width(self) -> int:
        """Number of columns of the results."""
        return self._out.width

    @property
    def is_narrow(self) -> bool:
        return self.width < 100

    def line(self, text: Cell = "") -> None:
        """Print a line of the result, for people."""
        if not self.as_json:
            self._out.print(text if isinstance(text, Text) else clean(text), soft_wrap=True)

    def fact(self, name: str, text: Cell) -> None:
        """Print a named line of the result, with further lines indented below its text."""
        if self.as_json:
            return
        head, shown = Text(f"{name:<{_NAME - 1}} ", style="bold"), text
        if isinstance(shown, str):
            room = max(self.width - _NAME, 30)
            folded = textwrap.wrap(
                clean(shown), room, break_long_words=False, break_on_hyphens=False
            )
            shown = Text(("\n" + " " * _NAME).join(folded))
        self.line(head + shown)

    def dim(self, text: str) -> None:
        """Print a line of the result that is less important."""
        self.line(Text(clean(text), style="dim"))

    def explain(self, text: str) -> None:
        """Print less important words of the result, on as many lines as they need."""
        for line in textwrap.wrap(text, self.width, break_on_hyphens=False):
            self.dim(line)

    def table(self, table: Table) -> None:
        if not self.as_json:
            self._out.print(table)

    def document(self, body: dict[str, Any]) -> None:
        """Print the result for programs, once at the end of a command."""
        if self.as_json:
            print(json.dumps(plain(body), indent=2, allow_nan=False), flush=True)

    def note(self, text: str) -> None:
        """Print a note on standard error, which is not part of the result."""
        self._err.print(clean(text), soft_wrap=True)

    def is_asking(self) -> bool:
        """Returns whether a person can be asked."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Shows a progress bar of bytes on a terminal, and yields a function that advances it by a
        number of bytes; any thread may call it."""
        from rich.progress import (  # which only long commands import
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._err,
            transient=True,
            disable=not self._err.is_terminal,
        )
        with bar:
            task = bar.add_task(clean(what), total=total or None)
            yield lambda n: bar.advance(task, n)

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Does the same as `progress`, but counts things instead of bytes."""
        from rich.progress import Progress

        bar = Progress(console=self._err, transient=True, disable=not self._err.is_terminal)
        with bar:
            task = bar.add_task(clean(what), total=total)
            yield lambda n: bar.advance(task, n)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Shows a spinner on a terminal while the amount of work is unknown."""
        if self._err.is_terminal:
            with self._err.status(clean(what)):
                yield
        else:
            yield


def table(*columns: str, right: Sequence[str] = (), folded: Sequence[str] = ()) -> Table:
    """Return an empty table in the style of all commands: numbers right, long texts wrapped."""
    made = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name not in folded,
            overflow="fold" if name in folded else "ellipsis",
        )
    return made


def fitted_table(
    rows: Sequence[Mapping[str, Cell]],
    importance: Sequence[str],
    width: int,
    *,
    columns: Sequence[str],
    right: Sequence[str],
    folded: Mapping[str, int],
) -> Table:
    """Return a table of the columns that fit.

    Args:
        rows: the cells of each row by the names of their columns.
        importance: the columns, the most important one first.
        width: number of columns of the terminal.
        columns: the same ones, from left to right, and others that are never shown.
        folded: columns whose longer cells are folded, with the width that they have at least.
    """
    fitting = fitting_cells(rows, importance, width, folded)
    shown = [name for name in columns if name in fitting]
    made = table(*shown, right=right, folded=[*folded])
    for row in rows:
        made.add_row(*(row[name] for name in shown))
    return made


def ratio(raw: float, stored: float) -> str:
    """Format the compression ratio: "1.42x"."""
    if stored <= 0:
        return ""
    times = raw / stored
    return f"{times:.2f}x" if times < 100 else f"{times:,.0f}x"


def when(unix_s: float, *, exact: bool = False) -> str:
    """Format a local time: short in tables, to the second in prose."""
    if exact:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
    return time.strftime("%b %d %H:%M", time.localtime(unix_s))


def number(value: float) -> str:
    return f"{value:.4g}"


def _console(stream: IO[str]) -> Console:
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
