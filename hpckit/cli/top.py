"""`hpckit top`."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import ROOT, require_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from hpckit.report.overview import Overview, Queue
    from hpckit.report.terminal.top_view import RunCurves, ScreenSize, TopDetail
    from hpckit.rundir.directory import RunDir
    from hpckit.rundir.record_stamp import RecordStamp

LOG_LINES = 100
"""Number of lines at the end of a log that are read; as many are shown as fit."""
ESCAPE, ENTER, BACKSPACE = "\x1b", ("\n", "\r"), ("\x7f", "\b")


def top(
    root: Annotated[Path, typer.Option(help="Folder with the run directories.")] = ROOT,
    every: Annotated[
        float, typer.Option(min=0.5, help="Seconds between two updates; each one calls squeue.")
    ] = 5.0,
) -> None:
    """Watch all runs below ./runs: state, step, loss, time to go, speed, ETTR and last cause.

    Example: hpckit top --every 2

    Keys: up and down select a run, enter opens it (curves, and the end of its log), l shows the end
    of its log, w explains its state, c cancels it after a confirmation, s sorts by the next column,
    / lists only runs with some words in their name or state, ? shows all keys and columns, q quits.
    On a narrow terminal, the least important columns are left out. hpckit status prints the same
    once, also as JSON.
    """
    from rich.console import Console
    from rich.live import Live

    from hpckit.cli.common.silenced_warnings import silenced_warnings
    from hpckit.cli.common.terminal_keys import terminal_key_reader

    with reported_errors():
        console = Console()
        if not (console.is_terminal and sys.stdin.isatty()):
            raise CommandError("hpckit top needs a terminal; use hpckit status")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a name may have what a terminal cannot show
        require_root(root)
        screen = TopScreen(root)
        with (
            silenced_warnings(),
            terminal_key_reader() as read,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while not screen.is_over:
                screen.look()
                until_s = time.monotonic() + every
                while not screen.is_over and (left_s := until_s - time.monotonic()) > 0:
                    live.update(screen.view(_size_of(console)), refresh=True)
                    screen.press(read(left_s))


def _size_of(console: Console) -> ScreenSize:
    from hpckit.report.terminal.top_view import ScreenSize

    return ScreenSize(console.width, console.height, console.options.ascii_only)


class TopScreen:
    """The screen of `hpckit top` and its reaction to keys."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._all: list[Overview] = []
        self._seen: dict[Path, tuple[RecordStamp, Overview]] = {}
        """The overview of each run, and the state of its files for which it holds."""
        self._name: str | None = None
        """The selected run."""
        self._sort, self._is_reversed = 0, False
        self._words, self._is_typing = "", False
        self._has_help, self._is_open, self._is_of_rank = False, False, False
        self._detail: TopDetail | None = None
        self._curves: RunCurves | None = None
        self._asked: Overview | None = None
        """The run that is cancelled if the next key confirms it."""
        self.is_over = False

    def look(self) -> None:
        """Refresh all runs and keep the selected one."""
        from hpckit.report.overview import Queue, runs_below
        from hpckit.rundir.record_stamp import record_stamp

        slurm = Queue()
        # before Slurm is asked, which may know later of a job that is being submitted
        stamps = [(run, record_stamp(run)) for run in runs_below(self._root)]
        found = (self._look_at(run, stamp, slurm) for run, stamp in stamps)
        self._all = [it for it in found if it is not None]
        names = [it.run.name for it in self._all]
        if self._asked is not None and self._asked.run.name not in names:
            self._show(f"{self._asked.run.name} no longer exists")
            self._asked = None
        if self._is_open and self._name not in names:
            self._show(f"{self._name} no longer exists")
            self._is_open = False
        elif self._is_open:
            self._read_log_of_open()
        elif self._detail is not None and self._detail.is_log and self._name in names:
            self._read_log(self._all[names.index(self._name)].run)

    def view(self, size: ScreenSize) -> RenderableType:
        from hpckit.report.terminal.top_view import RunCurves, TopState, view_of

        runs = self._listed()
        state = TopState(
            runs=runs,
            total=len(self._all),
            chosen=self._chosen(runs),
            sort=self._order,
            is_reversed=self._is_reversed,
            words=self._words,
            is_typing=self._is_typing,
            has_help=self._has_help,
            is_open=self._is_open,
            curves=self._curves or RunCurves(),
            detail=self._detail,
        )
        return view_of(state, size, time.time())

    def press(self, key: str) -> None:
        """Handle a key; "" and unknown keys have no effect."""
        if not key:
            return
        if self._asked is not None:
            self._answer(self._asked, key)
        elif self._is_typing:
            self._type(key)
        elif self._has_help:
            self._has_help = False
        elif key in ("q", "?", "/", "s", "S", ESCAPE):
            self._of_list(key)
        elif runs := self._listed():
            self._of_run(key, runs)

    def _of_list(self, key: str) -> None:
        """Handle a key that is not about the selected run."""
        from hpckit.report.terminal.top_list import SORTS

        match key:
            case "q":
                self.is_over = True
            case "?":
                self._has_help = True
            case "/" if not self._is_open:
                self._is_typing = True
            case "s" if not self._is_open:
                self._sort = (self._sort + 1) % len(SORTS)
            case "S" if not self._is_open:
                self._is_reversed = not self._is_reversed
            case _ if key == ESCAPE:
                self._back()

    def _back(self) -> None:
        """Close what was opened last: the detail, the run, or the filter."""
        if self._is_open:
            self._is_open, self._detail = False, None
        elif self._detail is not None:
            self._detail = None
        else:
            self._words = ""

    def _of_run(self, key: str, runs: Sequence[Overview]) -> None:
        from hpckit.cli.common.terminal_keys import DOWN, UP
        from hpckit.report.terminal.top_curves import read_curves

        chosen = self._chosen(runs)
        it = runs[chosen]
        moves = {UP: chosen - 1, "k": chosen - 1, DOWN: chosen + 1, "j": chosen + 1}
        moves |= {"g": 0, "G": len(runs) - 1}
        if key in moves and not self._is_open:
            self._name, self._detail = runs[moves[key] % len(runs)].run.name, None
        elif key in ENTER and not self._is_open:
            self._name, self._is_open, self._is_of_rank = it.run.name, True, False
            self._curves = read_curves(it.run)
            self._read_log_of_open()
        elif key == "l" and self._is_open:
            has_log = self._detail is not None and self._detail.is_log
            if has_log:  # after something else, the same log
                self._is_of_rank = not self._is_of_rank
            self._read_log(it.run)
        elif key == "l":
            self._name, self._is_of_rank = it.run.name, False
            self._read_log(it.run)
        elif key == "w":
            self._show(f"why: {it.run.name}", _why(it))
        elif key == "c":
            self._ask(it)

    def _ask(self, it: Overview) -> None:
        self._name = it.run.name
        self._asked = it if it.is_alive else None
        what = "y: cancel it now   s: let it save first   other keys: do not cancel"
        self._show(f"{it.run.name} is {it.word}", [what] if self._asked else [])

    def _answer(self, asked: Overview, key: str) -> None:
        self._asked = self._detail = None
        if key in ("y", "s"):
            self._show(_cancel(asked, saves=key == "s"))

    def _type(self, key: str) -> None:
        """Handle a key while the words are typed by which runs are listed."""
        if key in ENTER or key == ESCAPE:
            self._is_typing = False
            self._words = "" if key == ESCAPE else self._words
        elif key in BACKSPACE:
            self._words = self._words[:-1]
        elif key.isprintable():
            self._words += key

    def _look_at(self, run: RunDir, stamp: RecordStamp, slurm: Queue) -> Overview | None:
        """Return the state of a run, and keep the curves of the one that is open; the state of
        before, if nothing of it is active and none of its files has changed. None: it no longer
        exists, or is another user's and may not be read."""
        from hpckit.events.event_validation import read_valid_events
        from hpckit.report.overview import read_overview
        from hpckit.report.terminal.top_curves import curves_of

        before = self._seen.get(run.path)
        if before is not None and before[0] == stamp and not before[1].is_alive:
            return before[1]
        is_open = self._is_open and run.name == self._name
        try:
            events = read_valid_events(run).events if is_open else None
            found = read_overview(run, slurm, events)
        except OSError:  # it was removed, is another user's, or is damaged
            return None
        self._seen[run.path] = (stamp, found)
        if events is not None:
            self._curves = curves_of(events)
        return found

    def _read_log_of_open(self) -> None:
        """Read the log of the run that is open, unless something else is shown in its place."""
        it = next(it for it in self._all if it.run.name == self._name)
        if self._detail is None or self._detail.is_log:
            self._read_log(it.run)

    def _read_log(self, run: RunDir) -> None:
        from hpckit.report.log_files import LogSelection, find_log, lines_for_screen

        wanted = LogSelection(rank=0) if self._is_of_rank else LogSelection()
        whose = "rank 0's log" if self._is_of_rank else "log"
        path = find_log(run, wanted)
        lines = ["there is none yet"]
        try:
            if path is not None:
                with open(path, "rb") as file:
                    lines = lines_for_screen(file, LOG_LINES)
        except OSError as error:
            lines = [str(error)]
        self._show(f"{whose} of {run.name}", lines, is_log=True)

    def _listed(self) -> list[Overview]:
        """Return the runs that keys may be about: those of the list, or the one that is open."""
        from hpckit.report.terminal.top_list import listed

        if self._is_open:
            return [it for it in self._all if it.run.name == self._name]
        return listed(self._all, self._order, self._words, is_reversed=self._is_reversed)

    def _chosen(self, runs: Sequence[Overview]) -> int:
        names = [it.run.name for it in runs]
        return names.index(self._name) if self._name in names else 0

    @property
    def _order(self) -> str:
        from hpckit.report.terminal.top_list import SORTS

        return [*SORTS][self._sort]

    def _show(self, title: str, lines: Sequence[str] = (), *, is_log: bool = False) -> None:
        from hpckit.report.terminal.top_view import TopDetail

        self._detail = TopDetail(title, lines, is_log)


def _why(it: Overview) -> list[str]:
    from hpckit.cli.why import budget_of_run
    from hpckit.report.why import explain_run

    found = explain_run(it, budget_of_run(it), time.time())
    return [*(f"{fact.name}: {fact.text}" for fact in found.facts), *found.commands]


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
