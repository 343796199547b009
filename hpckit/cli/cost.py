"""`hpckit cost`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpckit.cli.common.command_errors import reported_errors
from hpckit.cli.common.run_argument import (
    ROOT,
    GpuPrice,
    JsonOption,
    NodePrice,
    RootOption,
    complete_run,
    require_root,
    submitted_run,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hpckit.cli.common.command_output import Cell, CommandOutput
    from hpckit.report.cost.cost_summary import Prices, RunCost
    from hpckit.report.cost.lineage import Lineage
    from hpckit.rundir.directory import RunDir

_NUMBERS = ("node-hours", "trained", "ETTR", "money")


def cost(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run directories, or names below ./runs; without any, all runs.",
            autocompletion=complete_run,
        ),
    ] = None,
    root: RootOption = ROOT,
    lineage: Annotated[
        bool,
        typer.Option(
            "--lineage", help="Also the runs that RUN was forked from, and all of their forks."
        ),
    ] = False,
    by_user: Annotated[
        bool,
        typer.Option("--by-user", help="Add up the runs of each user who owns run directories."),
    ] = False,
    node_price: NodePrice = None,
    gpu_price: GpuPrice = None,
    json: JsonOption = False,
) -> None:
    """Show the node-hours of runs by cause, and with a price what they have cost.

    Example: hpckit cost gpt-1a2b3c4d --gpu-price 2.5

    All the time for which jobs of the run have held nodes is divided: steps that count (trained,
    and in them checkpoint stalls, checks of computations, waiting for data, validation, stragglers
    and skipped updates), what was lost to
    each kind of interruption (its detection, restart and repeated steps), start-up, idle nodes and
    the end. A supervisor that was killed counts up to its last event. Evaluations of checkpoints
    (eval.every) count with a node each; on the machine of the run, only while the run does not hold
    it; and one that was killed does not count.

    With --lineage, forks are looked for beside the runs and in --root. With --by-user, give the
    --root of a group: a run belongs to the user who owns its directory.

    Keys of --json: runs (of each: runs, node_hours by cause, total_node_hours, gpu_hours, trained:
    a share, queued_hours between jobs, energy_kwh if Slurm measures it, ettr, money), sum (the same
    of all), and left_out (run, reason: of runs that cannot be read, and that sum is without). With
    --lineage also forks (run; from: path, run, store, step, id) and missing (run directories of
    parents that are gone), and with --by-user users (by name, the same as of a run). Unknown values
    are null.
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.report.cost.cost_summary import Prices, sum_of
    from hpckit.report.cost.lineage import Lineage, read_lineage, real_path
    from hpckit.report.cost.users import cost_by_user, owner_of
    from hpckit.report.overview import runs_below

    with reported_errors(json):
        out = CommandOutput(json)
        require_root(root)
        found = [submitted_run(run) for run in runs] if runs else runs_below(root)
        line = read_lineage(found, root) if lineage else Lineage(tuple(found), {}, ())
        prices = Prices(node_price, gpu_price)
        needed = {real_path(run.path) for run in found} if runs else set[Path]()
        by_run, left_out = _read_costs(line.runs, prices, needed)
        line, costs = replace(line, runs=tuple(by_run)), list(by_run.values())
        whole = sum_of(costs)
        document: dict[str, Any] = {"runs": [one.record() for one in costs], "sum": whole.record()}
        document["left_out"] = [{"run": run.name, "reason": why} for run, why in left_out.items()]
        if lineage:
            forks = [{"run": path.name, "from": asdict(fork)} for path, fork in line.forks.items()]
            document |= {"forks": forks, "missing": list(line.missing)}
        users: dict[str, RunCost] = {}
        if by_user:
            owners = map(owner_of, line.runs)
            users = cost_by_user([*zip(owners, costs, strict=True)])
            document["users"] = {user: one.record() for user, one in users.items()}
        out.document(document)
        if gpu_price is not None and costs and whole.gpu_hours is None:
            out.note("--gpu-price has no effect, as no GPUs are known here; give --node-price")
        for run, why in left_out.items():
            out.note(f"{run.name} is left out, also of the sum: {why}")
        if not line.runs and not left_out:
            is_there = "no run in" if root.is_dir() else "there is no folder"
            out.note(f"{is_there} {root.resolve()}; another one: --root")
        elif by_user and costs:
            _print_users(users, whole, out)
        elif len(costs) == 1:
            _print_run(costs[0], out)
        elif costs:
            _print_runs(costs, whole, line, out)
        for path in line.missing:
            out.note(
                f"{path}, which a run was forked from, no longer exists or may not be read, and "
                "does not count"
            )


def _read_costs(
    runs: Sequence[RunDir], prices: Prices, needed: Collection[Path]
) -> tuple[dict[RunDir, RunCost], dict[RunDir, str]]:
    """Return the cost of each run that can be read, and why the others cannot.

    Args:
        needed: run directories, without links, of runs that have to be read.

    Raises:
        OSError, SpecError: one of them cannot be read.
    """
    from hpckit.config.spec_parser import SpecError
    from hpckit.report.cost.cost_summary import read_cost
    from hpckit.report.cost.lineage import real_path
    from hpckit.system.os_errors import describe_error

    found: dict[RunDir, RunCost] = {}
    left_out: dict[RunDir, str] = {}
    for run in runs:
        try:
            found[run] = read_cost(run, prices)
        except (OSError, SpecError) as error:
            if real_path(run.path) in needed:
                raise
            left_out[run] = (
                describe_error(error) if isinstance(error, OSError) else error.violations[0]
            )
    return found, left_out


def _print_run(cost: RunCost, out: CommandOutput) -> None:
    from hpckit.cli.common.command_output import table

    shown = table("cause", "node-hours", "share", right=("node-hours", "share"))
    for cause, hours in cost.node_hours.items():
        cells = (f"{hours:,.2f}", f"{cost.share(cause):.1%}")
        if cells != ("0.00", "0.0%"):
            shown.add_row(cause, *cells)
    out.table(shown)
    for name, text in _facts(cost):
        out.fact(name, text)


def _print_runs(costs: list[RunCost], whole: RunCost, line: Lineage, out: CommandOutput) -> None:
    from hpckit.cli.common.command_output import clean, fitted_table

    rows: list[dict[str, Cell]] = []
    for run, one in zip(line.runs, costs, strict=True):
        ettr = "" if one.ettr is None else f"{one.ettr:.1%}"
        fork = line.forks.get(run.path)
        where = clean(f"step {fork.step:,} of {fork.run}") if fork else ""
        rows.append({"run": clean(one.names[0]), **_cells(one), "ETTR": ettr, "forked from": where})
    priced = ["money"] if whole.money is not None else []
    importance = ["run", "node-hours", *priced, "trained", "ETTR"]
    importance += ["forked from"] if line.forks else []
    folded = {"run": 20} | ({"forked from": 20} if line.forks else {})
    columns = ("run", *_NUMBERS, "forked from")
    out.table(
        fitted_table(rows, importance, out.width, columns=columns, right=_NUMBERS, folded=folded)
    )
    for name, text in _facts(whole):
        out.fact(name, text)


def _print_users(users: dict[str, RunCost], whole: RunCost, out: CommandOutput) -> None:
    from hpckit.cli.common.command_output import clean, fitted_table

    rows: list[dict[str, Cell]] = [
        {"user": clean(user), "runs": str(len(one.names)), **_cells(one)}
        for user, one in users.items()
    ]
    priced = ["money"] if whole.money is not None else []
    importance = ("user", "node-hours", *priced, "runs", "trained")
    columns, numbers, folded = ("user", "runs", *_NUMBERS), ("runs", *_NUMBERS), {"user": 12}
    out.table(
        fitted_table(rows, importance, out.width, columns=columns, right=numbers, folded=folded)
    )
    for name, text in _facts(whole):
        out.fact(name, text)


def _cells(cost: RunCost) -> dict[str, Cell]:
    from hpckit.report.cost.node_hours import TRAINED

    return {
        "node-hours": f"{cost.total_hours:,.2f}",
        "trained": f"{cost.share(TRAINED):.1%}",
        "money": "" if cost.money is None else f"{cost.money:,.2f}",
    }


def _facts(cost: RunCost) -> list[tuple[str, str]]:
    from hpckit.text.quantities import span

    facts = [("node-hours", f"{cost.total_hours:,.2f}")]
    if cost.gpu_hours is not None:
        facts.append(("GPU-hours", f"{cost.gpu_hours:,.2f}"))
    facts.append(("between jobs", span(3600 * cost.queued_hours)))
    if cost.ettr is not None:
        what = "steps that count / all time since the first job began"
        facts.append(("ETTR", f"{cost.ettr:.1%} ({what})"))
    if cost.energy_kwh is not None:
        facts.append(("energy", f"{cost.energy_kwh:,.2f} kWh"))
    if cost.money is not None:
        facts.append(("money", f"{cost.money:,.2f}"))
    return facts
