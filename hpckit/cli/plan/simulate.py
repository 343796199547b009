"""`hpckit plan simulate`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.run_argument import JsonOption
from hpckit.planner.assumptions import NODE_MTBF_HOURS

if TYPE_CHECKING:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.planner.goodput.snapshot_tiers import Fleet, TierOutcome

_LOST_SHARE = 0.78
"""Share of 419 unexpected interruptions that were attributed to hardware (Grattafiori et al. 2024,
section 3.3.4). It is assumed that each of these loses its node."""
_HANG_SHARE = 0.017
"""Share of these interruptions that the NCCL watchdog ended, with unknown cause (table 5)."""
_STORE_GBPS = 0.1
"""GB/s of the store for each GPU: 16,384 GPUs have 1.6 TB/s; in Grattafiori et al. 2024 (section
3.3.1) they had 2 TB/s."""
_SPARES = 0.01
"""Share of the nodes that are spares."""


def simulate(
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the job.")] = 16384,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of a node.")] = 8,
    state_gb: Annotated[
        float, typer.Option(min=0.001, help="Size of parameters and optimizer state.")
    ] = 4860.0,
    mtbf_hours: Annotated[
        float, typer.Option(min=0.01, help="Hours between failures of one node.")
    ] = NODE_MTBF_HOURS,
    lost_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of failures that lose a node.")
    ] = _LOST_SHARE,
    hang_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of failures that are hangs.")
    ] = _HANG_SHARE,
    preempt_hours: Annotated[
        float, typer.Option(min=0.01, help="Hours between preemptions of the job.")
    ] = math.inf,
    queue: Annotated[
        float,
        typer.Option(min=0, help="Seconds that the job waits in the queue after a preemption."),
    ] = 0.0,
    spares: Annotated[
        int | None, typer.Option(min=0, help="Spare nodes; by default one in a hundred.")
    ] = None,
    shrink: Annotated[
        int, typer.Option(min=0, help="Nodes that it continues without if no spare is left.")
    ] = 0,
    repair_hours: Annotated[
        float, typer.Option(min=0, help="Hours until a lost node is a spare again.")
    ] = 4.0,
    store_gbps: Annotated[
        float | None,
        typer.Option(min=0.001, help=f"GB/s of the store; by default {_STORE_GBPS} per GPU."),
    ] = None,
    manifest: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds to write a manifest; by default as measured for each chunk of a 405B "
            "model (benchmarks.store.store_scale).",
        ),
    ] = None,
    manifest_read: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to read it on all nodes; by default by the same."),
    ] = None,
    host_gbps: Annotated[
        float, typer.Option(min=0.001, help="GB/s from the GPUs of a node to its host memory.")
    ] = 100.0,
    network_gbps: Annotated[
        float, typer.Option(min=0.001, help="GB/s from one node to another.")
    ] = 50.0,
    detect: Annotated[float, typer.Option(min=0, help="Seconds to detect a failure.")] = 5.0,
    detect_hang: Annotated[float, typer.Option(min=0, help="Seconds to detect a hang.")] = 600.0,
    restart: Annotated[
        float, typer.Option(min=0, help="Seconds to start processes and meet.")
    ] = 60.0,
    interval: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds between snapshots; by default the cheapest."),
    ] = None,
    stall: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds that a snapshot stalls training; by default a part of its copy."
        ),
    ] = None,
    days: Annotated[float, typer.Option(min=0.01, help="Simulated days of each course.")] = 54.0,
    courses: Annotated[
        int, typer.Option(min=1, help="Number of simulated courses to average.")
    ] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the random failures.")] = 0,
    json: JsonOption = False,
) -> None:
    """Simulate the goodput of a large job on nodes that fail.

    Example: hpckit plan simulate --gpus 100000 --store-gbps 2000 --spares 50

    It compares resuming from the store, from the memory of the remaining nodes, and from replicas
    in the memory of neighbouring nodes, too. The defaults are a 405B model and the failures of
    Llama 3 (419 in 54 days on 16,384 GPUs). The seconds to detect a failure and to restart are
    guesses; give your own. docs/scale.md compares it with published figures and measured faults.
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.planner.goodput import manifest_times
    from hpckit.planner.goodput.snapshot_tiers import TIERS, Fleet, outcome

    if lost_share + hang_share > 1:
        raise typer.BadParameter("--lost-share and --hang-share are more than 1 together")
    from hpckit.text.quantities import count

    nodes = -(-gpus // gpus_per_node)
    if shrink >= nodes:
        raise typer.BadParameter(f"--shrink leaves no node of {count(nodes, 'node')}")
    gbps = _STORE_GBPS * gpus if store_gbps is None else store_gbps
    if manifest is None:
        manifest = manifest_times.write_s(gpus)
    if manifest_read is None:
        manifest_read = manifest_times.read_s(gpus, nodes, gbps)
    fleet = Fleet(
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        state_gb=state_gb,
        mtbf_hours=mtbf_hours,
        lost_share=lost_share,
        hang_share=hang_share,
        preempt_hours=preempt_hours,
        spares=round(_SPARES * nodes) if spares is None else spares,
        shrink=shrink,
        repair_hours=repair_hours,
        queue_s=queue,
        store_gbps=gbps,
        manifest_s=manifest,
        manifest_read_s=manifest_read,
        host_gbps=host_gbps,
        network_gbps=network_gbps,
        detect_s=detect,
        hang_s=detect_hang,
        restart_s=restart,
        interval_s=interval,
        stall_s=stall,
    )
    out = CommandOutput(json)
    with out.counting("simulating", len(TIERS)) as advance:
        found = []
        for tier in TIERS:
            found.append(outcome(fleet, tier, days, courses, seed))
            advance(1)
    _print_outcomes(out, fleet, found)


def _print_outcomes(out: CommandOutput, fleet: Fleet, found: list[TierOutcome]) -> None:
    from hpckit.cli.common.command_output import table
    from hpckit.text.quantities import count, decimal, span, span_s

    out.fact("failures", f"one every {span(fleet.mtbf_s)}, {count(fleet.nodes, 'node')}")
    rate, state = decimal(fleet.store_gbps * 1e9, "B/s"), decimal(fleet.state_gb * 1e9)
    out.fact("store", f"{rate} for {state}")
    times = f"{span_s(fleet.manifest_s)} to write, {span_s(fleet.manifest_read_s)} to read"
    out.fact("manifest", times)
    out.fact("spares", f"{count(fleet.spares, 'node')}, back after {fleet.repair_hours:g} h")
    out.line()
    nonzero = {part for one in found for part, share in one.shares.items() if share > 0}
    parts = [part for part in found[0].shares if part in nonzero and part != "training"]
    head = ("continues from", "saves every", "goodput", *parts)
    shown = table(*head, right=head[1:])
    for one in found:
        goodput = f"{one.goodput:.2%} ± {one.spread:.2%}"
        cells = [f"{one.shares[part]:.2%}" for part in parts]
        shown.add_row(one.tier, f"{one.interval_s:.1f} s", goodput, *cells)
    out.table(shown)
    settings = {name: None if value == math.inf else value for name, value in vars(fleet).items()}
    out.document({**settings, "mtbf_s": fleet.mtbf_s, "tiers": [o.record() for o in found]})
