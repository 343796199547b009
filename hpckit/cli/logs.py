"""`hpckit logs`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import JsonOption, RunPath, submitted_run

if TYPE_CHECKING:
    from hpckit.agent.exit_report import WorkerError
    from hpckit.report.log_files import LogSelection
    from hpckit.rundir.directory import RunDir

_TICK_S = 0.3
_LOOK_S = 10.0
"""Seconds between two checks of whether the run is over, which limits the load on Slurm's
controller."""


def logs(
    run: RunPath,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines as they are written.")
    ] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Show the log of this rank.")] = None,
    node: Annotated[
        int | None,
        typer.Option(min=0, help="Show the agent of this node; with --generation, its torchrun."),
    ] = None,
    generation: Annotated[
        int | None, typer.Option(min=1, help="Generation; by default the newest that has the log.")
    ] = None,
    first_error: Annotated[
        bool,
        typer.Option("--first-error", help="Show the traceback of the rank that failed first."),
    ] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=0, help="Number of lines from the end; 0: all.")
    ] = 100,
    json: JsonOption = False,
) -> None:
    """Show the log of a run's supervisor, of a rank or of a node.

    Example: hpckit logs gpt-1a2b3c4d --rank 3 -f

    With -f it follows the next attempt, generation and job, too, until the run has ended.
    """
    from hpckit.report.log_files import LogSelection

    with reported_errors(json):
        found, wanted = submitted_run(run), LogSelection(rank, node, generation)
        if follow and (json or first_error):
            raise CommandError("-f: cannot be combined with --json or --first-error")
        if first_error:
            _first_error(found, generation, json)
        elif follow:
            _follow(found, wanted, lines)
        else:
            _show(found, wanted, lines, json)


def _show(run: RunDir, wanted: LogSelection, most: int, json: bool) -> None:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.report.log_files import describe_logs, find_log, last_lines

    path = find_log(run, wanted)
    if path is None:
        raise CommandError(f"{run.name} has no such log: {describe_logs(run)}{_others(run)}")
    shown, _ = last_lines(path, most)
    out = CommandOutput(json)
    out.document({"run": run.name, "file": str(path), "lines": shown})
    out.note(f"==> {path} <==")
    if not json:
        print("\n".join(shown))


def _others(run: RunDir) -> str:
    """Return a hint at the files of Slurm and submitit, for a job that ended before its first
    line."""
    found = [*run.logs.glob("batch-*.log"), *run.submitit.glob("*.err")]
    written = [path for path in found if path.stat().st_size]
    return f"; look at {max(written, key=lambda p: p.stat().st_mtime)}" if written else ""


def _follow(run: RunDir, wanted: LogSelection, most: int) -> None:
    from hpckit.report.log_files import find_log, follow, last_lines

    path, offset = find_log(run, wanted), 0
    if path is not None:
        _head(path)
        shown, offset = last_lines(path, most)
        print("".join(f"{line}\n" for line in shown), end="", flush=True)
    over = _Over(run)
    try:
        for added in follow(lambda: find_log(run, wanted), path, offset, over.look):
            if added is None:
                time.sleep(_TICK_S)
            elif added.begins is not None:
                _head(added.begins)
            else:
                print(added.line, flush=True)
    except KeyboardInterrupt:
        return
    from hpckit.cli.common.command_output import CommandOutput

    CommandOutput(False).note(f"{run.name}: {over.word}; more: hpckit why {run.name}")


def _head(path: Path) -> None:
    from hpckit.cli.common.command_output import CommandOutput

    CommandOutput(False).note(f"==> {path} <==")


class _Over:
    """A check of whether the run is over, which is made at intervals."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._next, self._is_over = run, 0.0, False
        self.word = ""

    def look(self) -> bool:
        from hpckit.report.overview import Queue, read_overview

        if not self._is_over and time.monotonic() > self._next:
            it = read_overview(self._run, Queue())
            self._is_over, self.word = not it.is_alive, it.word
            self._next = time.monotonic() + _LOOK_S
        return self._is_over


def _first_error(run: RunDir, generation: int | None, json: bool) -> None:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.report.error_location import find_error_line

    found = find_first_error(run, generation)
    if found is None:
        of = "" if generation is None else f" of generation {generation}"
        raise CommandError(f"{run.name}: neither a rank nor torchrun{of} has recorded an error")
    number, error = found
    where = find_error_line(error.traceback, run.code(run.submission_numbers()[-1]))
    out = CommandOutput(json)
    out.document(
        {
            "run": run.name,
            "generation": number,
            "rank": error.rank,
            "type": error.type,
            "message": error.message,
            "where": where,
            "time": error.time,
            "traceback": error.traceback,
            "file": error.file or None,
        }
    )
    whose = error.where if error.rank is None else f"rank {error.rank}"
    out.note(f"==> generation {number}, {whose}{f', {where}' if where else ''} <==")
    if not json:
        print(error.traceback.rstrip() or f"{error.type}: {error.message}")
    if error.file:
        out.note(f"==> read from {error.file} <==")


def find_first_error(run: RunDir, generation: int | None) -> tuple[int, WorkerError] | None:
    """Return the error of the rank that failed first in a generation, or of its torchrun.

    Args:
        generation: the number of the generation; None: the newest that has an error.
    """
    from hpckit.agent.exit_report import order_of

    numbers = run.generation_numbers() if generation is None else [generation]
    for number in reversed(numbers):
        errors = [_error_of_node(folder) for folder in run.generation_logs(number).glob("n*")]
        there = [error for error in errors if error is not None]
        if there:
            return number, min(there, key=order_of)
    return None


def _error_of_node(folder: Path) -> WorkerError | None:
    """Return the error that a rank has written, else the one that the agent has reported."""
    from hpckit.agent.exit_report import first_error, load_report
    from hpckit.system.atomic_files import read_json

    if (found := first_error(folder)) is not None:
        return found
    report = read_json(folder / "exit.json")
    return None if report is None else load_report(report).error
