"""`hpckit health`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.exit_status import FOUND
from hpckit.cli.common.run_argument import JsonOption

if TYPE_CHECKING:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.config.spec import DeepHealthSpec, RunSpec
    from hpckit.trainer.deep_health.health_figures import DeepHealthReport

_MODULE = "hpckit.trainer.deep_health.health_measuring"


def health(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OVERRIDES",
            help="Overrides as for launch.py, of where to run: cluster=NAME, launch.nodes=N, "
            "launch.nproc_per_node=N; and limits, as health.deep.slow_link=0.5.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure all nodes and ranks in a job of its own, and name what is wrong or slow.

    Example: hpckit health cluster=slurm launch.nodes=16 launch.nproc_per_node=8

    Each rank multiplies matrices, whose results are compared bit for bit between ranks and with
    the CPU, and measures its memory and the copies to and from its GPU. Each node measures its disk
    and, if checkpoint.url is set, the checkpoint store. Then pairs of nodes, and of ranks in each
    node, reduce over the two of them. Slow is what is below a share (health.deep.slow_...) of the
    median of the others, from three nodes, or ranks of one node, on. A run does the same before it
    begins with health=deep. Exit status 1 means that something is wrong or slow.

    Keys of --json: nodes, ranks_per_node, devices, measurements, wrong, exchanges, is_complete, and
    problems (node, peer, rank, device, measure, value, median, text, admin: the command that drains
    the node).
    """
    from hpckit.cli.common.command_output import CommandOutput

    with reported_errors(json):
        out = CommandOutput(json)
        report, limits, is_slurm = _measure(overrides or [], out)
        if _print(out, report, limits, is_slurm=is_slurm):
            raise typer.Exit(FOUND)


def _measure(
    typed: Sequence[str], out: CommandOutput
) -> tuple[DeepHealthReport, DeepHealthSpec, bool]:
    """Returns the report, the limits, and whether the nodes are Slurm's.

    Raises:
        CommandError: the job did not reach its end.
    """
    from hpckit.cli.bench.measured_runs import MeasuringProgram, measure
    from hpckit.trainer.deep_health.health_figures import HEALTH_REPORT

    # the program is the measurement itself
    ours = ("health.deep.first=false", "health.deep.after_suspicion=false")
    program = MeasuringProgram("health", _MODULE, HEALTH_REPORT, _options, "hardware", ours)
    report, site = measure(program, ["health=deep", *typed], out)
    return report, _limits(site), site.cluster.slurm is not None


def _limits(site: RunSpec) -> DeepHealthSpec:
    if site.health.deep is None:
        raise CommandError("health.deep is null; leave out health=, which is deep here")
    return site.health.deep


def _options(site: RunSpec) -> list[str]:
    """Returns the options of the program that depend on the site.

    Raises:
        CommandError: the user has turned the measurement off.
    """
    deep, slurm = _limits(site), site.cluster.slurm
    found = ["--seconds", str(deep.seconds), "--timeout-s", str(deep.timeout_s)]
    if slurm is not None and slurm.scratch is not None:
        found += ["--disk", slurm.scratch]
    if site.checkpoint.url is not None:
        found += ["--store", site.checkpoint.url]
    return found


def _print(
    out: CommandOutput, report: DeepHealthReport, limits: DeepHealthSpec, *, is_slurm: bool
) -> bool:
    """Prints the report, and returns whether anything is wrong or slow."""
    from dataclasses import asdict
    from statistics import median

    from hpckit.cli.common.command_output import table
    from hpckit.slurm.node_exclusion import drain_line
    from hpckit.text.quantities import count
    from hpckit.trainer.deep_health.health_figures import (
        HEALTH_REPORT,
        MEASURES,
        device_kind,
        health_problems,
        is_judged,
        rate_words,
        share_of,
    )

    shown = table("measure", "median", "lowest", "of", "limit", right=("median", "lowest", "limit"))
    for measure, words in MEASURES.items():
        same = [one for one in report.measurements if one.measure == measure]
        if not same:
            continue
        low = min(same, key=lambda one: one.value)
        name = report.nodes[low.node]
        shown.add_row(
            words,
            rate_words(median(one.value for one in same), measure),
            rate_words(low.value, measure),
            name if low.rank is None else f"{name}, rank {low.rank}",
            f"{share_of(measure, limits):.0%}",
        )
    out.table(shown)
    for kind, what in (("nodes", "pairs of nodes"), ("ranks", "pairs of ranks in a node")):
        rates = [one.bandwidth for one in report.exchanges if one.kind == kind]
        if rates:
            low_, middle, high = (rate_words(f(rates), "link") for f in (min, median, max))
            out.line(f"{what}, each direction: median {middle}, from {low_} to {high}")
    nodes = count(len(report.nodes), "node")
    kinds = ", ".join(sorted({device_kind(device) for device in report.devices}))
    out.fact("measured", f"{nodes} of {count(report.ranks_per_node, 'rank')} on {kinds}")
    if not is_judged(report):
        out.fact("note", "too few nodes and ranks to tell which one is slow")
    found = health_problems(report, limits)
    records: list[dict[str, Any]] = []
    for one in found:
        node = report.nodes[one.node]
        out.fact("found", f"{node}: {one.text}")
        record = asdict(one) | {"node": node, "admin": None}
        record["peer"] = None if one.peer is None else report.nodes[one.peer]
        if is_slurm and one.peer is None:
            record["admin"] = drain_line(node, one.text)
            out.dim(f"    {record['admin']}  # by an administrator")
        records.append(record)
    if not found:
        out.fact("found", "nothing is wrong or slow")
    out.document({**HEALTH_REPORT.dump_python(report, mode="json"), "problems": records})
    return bool(found)
