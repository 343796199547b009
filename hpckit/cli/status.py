"""`hpckit status`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import reported_errors
from hpckit.cli.common.run_argument import (
    ROOT,
    JsonOption,
    RootOption,
    complete_run,
    require_root,
    submitted_run,
)

if TYPE_CHECKING:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.report.overview import Overview, Queue


def status(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="The run directory, or its name; without it, all runs.",
            autocompletion=complete_run,
        ),
    ] = None,
    root: RootOption = ROOT,
    json: JsonOption = False,
) -> None:
    """Show the progress of all runs below ./runs in a table, or the details of one run.

    Example: hpckit status gpt-1a2b3c4d

    It reads the run directory and calls squeue. It needs no accounting and no daemon.

    Keys of --json (without RUN, of each entry of `runs`, beside which left_out has run and reason
    of those that cannot be read): run, path, cluster (local, slurm),
    forked_from (run, path, store, step, id), state (queued, starting, running, waiting, ended,
    failed, dead, unknown), verdict (verdict.json of the newest supervisor), step, steps, step_time,
    step_s, tokens_per_s, samples_per_s, data_wait, ettr, training_share (shares of the time), loss,
    saved_step, saved_time, generation, nodes, ranks, hosts, interruptions (count by kind),
    last_interruption (kind, step, time, or null), jobs (those that
    Slurm knows), successor (job), no_successor (why none is queued), successor_blocked (why it
    cannot start before a person changes something), refused (what sbatch printed when it refused
    the last job), failure, degraded, stragglers (ranks that the others wait for), straggler_cost
    (the newest event of that kind: share, spread and collectives are shares of a step; nodes,
    ranks, hosts, phases, excesses), hang (what the newest hang came from), certified_step (the
    newest step at which all ranks computed alike), wrong (which rank did not, at the newest check),
    skipped_updates (how many are left out, and the newest one), sources (of a mixture, by name:
    weight, samples, epochs, tokens, loss), health_problems (of health=deep), owner (of the lock),
    bad_nodes (host, problem, time, is_unhealthy, count, admin: a command for an administrator),
    evaluations (as of hpckit eval ls),
    problem. Times are seconds since the epoch; unknown values are null.
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.report.overview import Queue, read_overview

    with reported_errors(json):
        out, slurm = CommandOutput(json), Queue()
        if run is None:
            _all(root, out, slurm)
            return
        found = read_overview(submitted_run(run), slurm)
        out.document(found.record())
        _page(found, out)


def _all(root: Path, out: CommandOutput, slurm: Queue) -> None:
    from hpckit.report.overview import read_overview, runs_below
    from hpckit.report.terminal.status_table import table_of
    from hpckit.system.os_errors import describe_error

    require_root(root)
    runs, left_out = [], list[dict[str, str]]()
    for run in runs_below(root):
        try:
            runs.append(read_overview(run, slurm))
        except OSError as error:  # a run of another user, or a damaged one
            left_out.append({"run": run.name, "reason": describe_error(error)})
            out.note(f"{run.name} is left out: {describe_error(error)}")
    records = [run.record() for run in runs]
    out.document({"root": str(root.resolve()), "runs": records, "left_out": left_out})
    if slurm.error is not None:
        out.note(
            f"Slurm does not answer ({slurm.error}): the states come from the run directories alone"
        )
    if not runs:
        if not left_out:
            is_there = "no run in" if root.is_dir() else "there is no folder"
            out.note(f"{is_there} {root.resolve()}; another one: --root")
        return
    shown = table_of(runs, time.time(), out.width)
    out.table(shown.table)
    out.explain(shown.legend)


def _page(it: Overview, out: CommandOutput) -> None:
    from rich.text import Text

    from hpckit.report.terminal.status_table import page_of
    from hpckit.report.why import commands

    out.line(Text(it.run.name, style="bold"))
    for name, text in page_of(it, time.time()):
        out.fact(name, text)
    for command in (f"hpckit why {it.run.name}", *commands(it)):
        out.dim(f"    {command}")
