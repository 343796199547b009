"""`hpckit bench mlperf-checkpoint`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import JsonOption, SiteOverrides

if TYPE_CHECKING:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.trainer.checkpoint_workload.checkpoint_shapes import CheckpointTiming

_SCALE, _TIMES = "8b", 10
_MODULE = "hpckit.trainer.checkpoint_workload.checkpoint_timing"


def mlperf_checkpoint(
    overrides: SiteOverrides = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="8b, 70b, 405b or 1t; by default 8b, and all with --plan.", show_default=False
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The store to measure: a new folder, or s3://BUCKET/NAME."
        ),
    ] = None,
    fraction: Annotated[
        float | None,
        typer.Option(
            min=1e-6,
            max=1,
            help="Share of each tensor of a rank that is kept, by default 1.",
            show_default=False,
        ),
    ] = None,
    times: Annotated[
        int | None,
        typer.Option(min=1, help="Saves, and recoveries, by default 10.", show_default=False),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Only print what a whole scale asks of a store."),
    ] = False,
    store_gbps: Annotated[
        float | None,
        typer.Option(min=0.001, help="GB/s of the store, for the seconds of the plan."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure saves and recoveries of the checkpoint workloads of MLPerf Storage v2.0.

    Example: hpckit bench mlperf-checkpoint cluster=slurm launch.nodes=8 launch.nproc_per_node=8
    --scale 70b --store /lustre/bench

    The shapes are those of Llama 3 with 8B, 70B, 405B and 1T parameters, sharded over 8, 64, 512
    and 1,024 ranks as published. Each rank of the run holds the share of one of these ranks, or the
    given fraction of it, and saves it through the checkpoint service. A save counts until it is
    durable, and a recovery reads from the store; both are given in GiB/s of all ranks, and in
    seconds of the slowest one, as means. A folder is dropped from the page cache of each node
    before a recovery, and removed at the end; in a bucket, the checkpoints stay. There has to be
    room for all saves. These are not results of MLPerf, which its own program measures.
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.trainer.checkpoint_workload.checkpoint_shapes import SCALES

    with reported_errors(json):
        out = CommandOutput(json)
        if scale is not None and scale not in SCALES:
            raise CommandError(f"--scale: {scale!r} is not one of {', '.join(SCALES)}")
        if plan:
            given = {"--store": store, "--fraction": fraction, "--times": times}
            _refuse_with_plan([name for name, value in given.items() if value is not None])
            _refuse_with_plan(["overrides"] if overrides else [])
            _print_plan(out, tuple(SCALES) if scale is None else (scale,), store_gbps)
            return
        if store_gbps is not None:
            raise CommandError("--store-gbps: is only for --plan")
        if store is None:
            raise CommandError("--store: give the store to measure, or --plan to measure nothing")
        scale = scale or _SCALE
        words = [
            "--scale",
            scale,
            "--fraction",
            str(fraction or 1.0),
            "--times",
            str(times or _TIMES),
        ]
        timing = _measure(overrides or [], words, _new_store(store), out)
        _print(out, scale, timing)


def _refuse_with_plan(given: Sequence[str]) -> None:
    if given:
        raise CommandError(f"--plan: measures nothing, so leave out {', '.join(given)}")


def _new_store(store: str) -> str:
    """Return the URL of a bucket, or the absolute path of a folder that does not exist."""
    from checkpointing import local_folder, meant_url

    if meant := meant_url(store):
        raise CommandError(f"--store: {store} is neither a path nor a URL; did you mean {meant}?")
    folder = local_folder(store)
    if folder is None:
        return store
    if folder.exists():
        raise CommandError(f"--store: {folder} exists already; name a folder that does not")
    return str(folder.resolve())


def _measure(
    typed: list[str], options: list[str], store: str, out: CommandOutput
) -> CheckpointTiming:
    from hpckit.cli.bench.measured_runs import MeasuringProgram, measure
    from hpckit.trainer.checkpoint_workload.checkpoint_shapes import TIMING

    program = MeasuringProgram(
        "mlperf-checkpoint",
        _MODULE,
        TIMING,
        lambda site: [*options, "--store", store],
        "nodes of their own",
        ("retry.max_restarts=0",),  # a second try would find the store of the first one
    )
    try:
        timing, _ = measure(program, typed, out)
    except (CommandError, KeyboardInterrupt):
        _say_what_is_left(store, out)
        raise
    _say_what_is_left(store, out)
    return timing


def _say_what_is_left(store: str, out: CommandOutput) -> None:
    from checkpointing import local_folder

    folder = local_folder(store)
    if folder is None:
        out.note(f"what was saved to {store} is not removed")
    elif folder.exists():
        out.note(f"{folder} is left: remove it")


def _print(out: CommandOutput, scale: str, timing: CheckpointTiming) -> None:
    from hpckit.cli.common.command_output import table
    from hpckit.text.quantities import count
    from hpckit.trainer.checkpoint_workload.checkpoint_shapes import GIB, SCALES, TIMING, gib_per_s

    shape = SCALES[scale]
    size = timing.bytes / GIB
    whole = f"{shape.bytes / GIB:,.0f} GiB on {shape.ranks:,} ranks"
    out.fact("workload", f"{scale}, {size:,.3g} GiB on {count(timing.ranks, 'rank')} of {whole}")
    shown = table("", "GiB/s", "seconds", "slowest", right=("GiB/s", "seconds", "slowest"))
    figures = {"save": timing.save_s, "recover": timing.recover_s}
    for name, seconds in figures.items():
        mean = sum(seconds) / len(seconds)
        rate = f"{gib_per_s(timing.bytes, seconds):,.3g}"
        shown.add_row(name, rate, f"{mean:.3g}", f"{max(seconds):.3g}")
    out.table(shown)
    stall = sum(timing.stall_s) / len(timing.stall_s)
    out.fact("training waited", f"{stall:.3g} s for each save")
    if not timing.is_cold:
        out.note("the store is not a folder: what it keeps in memory counts")
    rates = {name: gib_per_s(timing.bytes, seconds) for name, seconds in figures.items()}
    out.document({**TIMING.dump_python(timing, mode="json"), "scale": scale, "gib_per_s": rates})


def _print_plan(out: CommandOutput, scales: Sequence[str], store_gbps: float | None) -> None:
    from hpckit.cli.common.command_output import table
    from hpckit.text.quantities import decimal
    from hpckit.trainer.checkpoint_workload.checkpoint_shapes import GIB, SCALES, plan_of

    head = ("scale", "ranks", "GiB", "published", "GiB of a rank", "packs", "manifest")
    timed = ("save", "recover") if store_gbps else ()
    shown = table(*head, "PUT of a save", "GET of a recovery", *timed, right=head[1:])
    found = {}
    for name in scales:
        shape = SCALES[name]
        plan = found[name] = plan_of(shape)
        seconds = [f"{shape.bytes / store_gbps / 1e9:.0f} s"] * 2 if store_gbps else []
        shown.add_row(
            name,
            f"{shape.ranks:,}",
            f"{shape.bytes / GIB:,.0f}",
            f"{shape.published_gb:,.0f}",
            f"{plan.rank_bytes / GIB:.1f}",
            f"{plan.packs:,}",
            decimal(plan.manifest_bytes),
            f"{plan.put:,}",
            f"{plan.get:,}",
            *seconds,
        )
    out.table(shown)
    out.document({name: vars(plan) for name, plan in found.items()})
