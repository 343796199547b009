"""`hpckit bench collectives`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.exit_status import FOUND
from hpckit.cli.common.run_argument import JsonOption, SiteOverrides

if TYPE_CHECKING:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.trainer.collectives.collective_figures import CollectiveReport

_MODULE = "hpckit.trainer.collectives.collective_timing"


def collectives(
    overrides: SiteOverrides = None,
    operations: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast; by default all.",
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE,...",
            help="Sizes of the buffers, as in 64KiB,16MiB; by default 4 KiB to 1 GiB on GPUs, and "
            "to 16 MiB on CPUs.",
        ),
    ] = None,
    budget_s: Annotated[
        float, typer.Option("--seconds", min=0.001, help="Seconds of each measurement.")
    ] = 0.2,
    json: JsonOption = False,
) -> None:
    """Measure collectives and links between all nodes and ranks, and name what is slow or wrong.

    Example: hpckit bench collectives cluster=slurm launch.nodes=16 launch.nproc_per_node=8

    One run measures all-reduce, all-gather, reduce-scatter, all-to-all and broadcast over all
    ranks, over the ranks of each node, and over the ranks of one number on all nodes. The result of
    each is compared exactly. Then pairs of nodes, and pairs of ranks in each node, exchange bytes.
    A node, rank or link below 75 % of the usual bandwidth is named. The command exits with 1 if a
    result was wrong.
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.trainer.collectives.collective_figures import is_wrong

    with reported_errors(json):
        out, typed = CommandOutput(json), overrides or []
        options = _options(operations, sizes, budget_s)
        report = _measure(typed, options, out)
        _print(out, report)
        if is_wrong(report):
            raise typer.Exit(FOUND)


def _options(operations: str | None, sizes: str | None, budget_s: float) -> list[str]:
    """Return the options of the program.

    Raises:
        CommandError: one of them is invalid.
    """
    from hpckit.cli.common.byte_sizes import parse_size
    from hpckit.cli.common.store_errors import CommandUsageError
    from hpckit.trainer.collectives.collective_figures import OPERATIONS

    found = ["--budget-s", str(budget_s)]
    if operations:
        names = [name.strip() for name in operations.split(",")]
        if unknown := [name for name in names if name not in OPERATIONS]:
            raise CommandError(
                f"--operations: {unknown[0]!r} is not one of {', '.join(OPERATIONS)}"
            )
        found += ["--operations", *names]
    if sizes:
        try:
            found += ["--sizes", *(str(parse_size(text)) for text in sizes.split(","))]
        except CommandUsageError as error:
            raise CommandError(f"--sizes: {error}") from None
    return found


def _measure(typed: Sequence[str], timing: list[str], out: CommandOutput) -> CollectiveReport:
    from hpckit.cli.bench.measured_runs import MeasuringProgram, measure
    from hpckit.trainer.collectives.collective_figures import REPORT

    program = MeasuringProgram("collectives", _MODULE, REPORT, lambda site: timing, "a network")
    return measure(program, typed, out)[0]


def _print(out: CommandOutput, report: CollectiveReport) -> None:
    from hpckit.cli.common.command_output import table
    from hpckit.text.quantities import count, decimal, size
    from hpckit.trainer.collectives.collective_figures import REPORT, findings

    head = ("operation", "over", "size", "time", "bus bandwidth", "slowest group")
    shown = table(*head, right=("size", "time", "bus bandwidth"))
    for one in report.collectives:
        late = f"{one.slowest}, {_duration(one.slowest_s)}" if one.group != "world" else ""
        shown.add_row(
            one.operation,
            f"{one.group} ({count(one.ranks, 'rank')})",
            size(one.size),
            _duration(one.seconds),
            decimal(one.bandwidth, "B/s"),
            late,
        )
    out.table(shown)
    _print_exchanges(out, report)
    found = findings(report)
    nodes = count(len(report.nodes), "node")
    out.fact("measured", f"{nodes} of {count(report.ranks_per_node, 'rank')}, {report.backend}")
    for text in found:
        out.fact("found", text)
    if not found:
        out.fact("found", "nothing is wrong or slow")
    out.document({**REPORT.dump_python(report, mode="json"), "findings": found})


def _print_exchanges(out: CommandOutput, report: CollectiveReport) -> None:
    from statistics import median

    from hpckit.text.quantities import decimal

    for kind, what in (("nodes", "pairs of nodes"), ("ranks", "pairs of ranks in a node")):
        rates = [one.bandwidth for one in report.exchanges if one.kind == kind]
        if rates:
            low, middle, high = (decimal(f(rates), "B/s") for f in (min, median, max))
            out.line(f"{what}, each direction: median {middle}, from {low} to {high}")


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
