"""`hpckit top`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import ROOT

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hpckit.report.overview import Overview

LOG_LINES = 15


def top(
    root: Annotated[Path, typer.Option(help="Folder with the run directories.")] = ROOT,
    every: Annotated[
        float, typer.Option(min=0.5, help="Seconds between two updates; each one calls squeue.")
    ] = 5.0,
) -> None:
    """Watch all runs below ./runs: state, step, rate, ETTR, newest checkpoint, data wait.

    Example: hpckit top --every 2

    Keys: up and down select a run, l shows the end of its log, w explains its state, c cancels
    it after a confirmation, q quits. hpckit status prints the same once, also as JSON.
    """
    from rich.console import Console
    from rich.live import Live

    from hpckit.cli.common.terminal_keys import terminal_key_reader

    with reported_errors():
        console = Console()
        if not (console.is_terminal and sys.stdin.isatty()):
            raise CommandError("hpckit top needs a terminal; use hpckit status")
        screen = TopScreen(root)
        with (
            terminal_key_reader() as read,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while not screen.is_over:
                screen.look()
                until_s = time.monotonic() + every
                while not screen.is_over and (left_s := until_s - time.monotonic()) > 0:
                    live.update(screen.view(), refresh=True)
                    screen.press(read(left_s))


class TopScreen:
    """The screen of `hpckit top` and its reaction to keys."""

    def __init__(self, root: Path) -> None:
        self._root, self._chosen = root, 0
        self._runs: list[Overview] = []
        self._detail: RenderableType | None = None
        self._title = ""
        self._asked: Overview | None = None
        """The run that is cancelled if the next key confirms it."""
        self.is_over = False

    def look(self) -> None:
        """Refresh all runs and keep the selected one."""
        from hpckit.report.overview import Queue, look, runs_below

        name = self._runs[self._chosen].run.name if self._runs else None
        slurm = Queue()
        self._runs = [look(run, slurm) for run in runs_below(self._root)]
        names = [it.run.name for it in self._runs]
        self._chosen = names.index(name) if name in names else 0
        if self._asked is not None and self._asked.run.name not in names:
            self._show(f"{self._asked.run.name} no longer exists", None)
            self._asked = None

    def view(self) -> RenderableType:
        from hpckit.report.terminal.top_view import view_of

        return view_of(self._runs, self._chosen, self._detail, self._title, time.time())

    def press(self, key: str) -> None:
        """Handle a key; "" and unknown keys have no effect."""
        from hpckit.cli.common.terminal_keys import DOWN, UP

        if self._asked is not None and key:
            self._answer(self._asked, key)
        elif key == "q":
            self.is_over = True
        elif not self._runs:
            return
        elif key in (UP, "k", DOWN, "j"):
            step = -1 if key in (UP, "k") else 1
            self._chosen = (self._chosen + step) % len(self._runs)
            self._show("", None)
        elif key == "l":
            self._show(f"log of {self._it.run.name}", _log(self._it))
        elif key == "w":
            self._show(f"why: {self._it.run.name}", _why(self._it))
        elif key == "c":
            self._asked = self._it if self._it.is_alive else None
            what = "y: cancel it now   s: let it save first   other keys: do not cancel"
            self._show(f"{self._it.run.name} is {self._it.word}", what if self._asked else None)

    @property
    def _it(self) -> Overview:
        return self._runs[self._chosen]

    def _show(self, title: str, detail: RenderableType | None) -> None:
        self._title, self._detail = title, detail

    def _answer(self, asked: Overview, key: str) -> None:
        self._asked = None
        if key in ("y", "s"):
            self._show(_cancel(asked, saves=key == "s"), None)
        else:
            self._show("", None)


def _log(it: Overview) -> str:
    """Return the last lines of the supervisor's log, as `hpckit logs` does."""
    from rich.markup import escape

    try:
        text = (it.run.logs / "supervisor.log").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return escape(str(error))
    return escape("\n".join(text.splitlines()[-LOG_LINES:]))


def _why(it: Overview) -> str:
    from rich.markup import escape

    from hpckit.cli.why import budget_of_run
    from hpckit.report.why import answer

    found = answer(it, budget_of_run(it), time.time())
    facts = [f"[bold]{escape(fact.name):<12}[/]{escape(fact.text)}" for fact in found.facts]
    return "\n".join([*facts, *(f"[dim]    {escape(words)}[/]" for words in found.commands)])


def _cancel(it: Overview, *, saves: bool) -> str:
    """Return the result of a cancellation, which runs in the background so that the screen is
    refreshed."""
    import subprocess

    program = "from hpckit.cli.main import app; app()"
    words = ["cancel", str(it.run.path), *(["--save"] if saves else [])]
    subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return f"{it.run.name} is being cancelled" + (", after a save" if saves else "")
