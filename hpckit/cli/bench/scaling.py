"""`hpckit bench scaling`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import JsonOption

if TYPE_CHECKING:
    from hpckit.cli.bench.scaling_figures import ScalingPoint
    from hpckit.cli.bench.world_shapes import ScalingWorkload, WorldShape
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.config.spec import RunSpec

_MODELS = "gpt_nano,gpt_tiny,gpt_mini"
_ENDINGS = (".svg", ".png", ".pdf")


def scaling(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OVERRIDES", help="Overrides as for launch.py: group=option, key=value."
        ),
    ] = None,
    worlds: Annotated[
        str | None,
        typer.Option(
            metavar="NxW,...",
            help="Nodes x workers of each world; by default doubling up to launch.nodes x "
            "launch.nproc_per_node.",
        ),
    ] = None,
    models: Annotated[
        str, typer.Option(metavar="NAME,...", help="Options of the config group model.")
    ] = _MODELS,
    steps: Annotated[int, typer.Option(min=10, help="Steps of each run.")] = 60,
    strong: Annotated[
        bool,
        typer.Option(
            "--strong",
            help="Strong scaling: the same global batch in every world. By default weak scaling: "
            "one micro-batch for each data-parallel rank and each pipeline stage.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File of the chart: .svg, .png or .pdf."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure the scaling efficiency of training on increasing numbers of ranks.

    Example: hpckit bench scaling cluster=slurm launch.nodes=4 launch.nproc_per_node=8
    train.global_batch=512 parallel=fsdp precision=bf16 --models gpt2,llama_1b

    Each world is a run, as launch.py would start it, in the folder scaling-TIME beside other runs.
    The runs follow each other. A run saves only at its end, and that checkpoint is removed.
    Efficiency is the samples per second of a rank, divided by those in the smallest world. A rank
    has the same number of CPU threads in every world: launch.threads_per_worker, or its share of
    the cores in the largest world.
    """
    from hpckit.cli.bench.scaling_figures import by_model
    from hpckit.cli.bench.world_shapes import ScalingWorkload
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.submit.compose import compose_spec

    with reported_errors(json):
        if output is not None and output.suffix not in _ENDINGS:
            raise CommandError(f"--output: {output} must end in {', '.join(_ENDINGS)}")
        draw = _plot()
        typed, out = overrides or [], CommandOutput(json)
        spec = compose_spec(typed)
        folder = Path(spec.root).expanduser() / time.strftime("scaling-%Y%m%d-%H%M%S")
        sizes = ScalingWorkload(steps, is_strong=strong)
        found = by_model(
            _measure(spec, typed, _cases(spec, models, worlds), sizes, folder.resolve(), out)
        )
        _print_figures(out, found)
        picture = output or folder / "scaling.svg"
        draw(found, f"{'strong' if strong else 'weak'} scaling", picture)
        out.fact("picture", str(picture))
        out.fact("runs", str(folder))


def _plot() -> Callable[[Mapping[str, Sequence[ScalingPoint]], str, Path], None]:
    try:
        from hpckit.cli.bench.scaling_plot import draw
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the picture needs the package {error.name}: pip install {error.name}"
        ) from error
    return draw


def _cases(spec: RunSpec, models: str, worlds: str | None) -> list[tuple[str, WorldShape]]:
    from hpckit.cli.bench.world_shapes import doubling, parse_world

    try:
        asked = [parse_world(text) for text in worlds.split(",")] if worlds else []
    except ValueError as error:
        raise CommandError(f"--worlds: {error}") from None
    all_worlds = asked or doubling(spec.launch.nodes, spec.launch.nproc_per_node)
    return [
        (model.strip(), world) for model in models.split(",") for world in dict.fromkeys(all_worlds)
    ]


def _measure(
    spec: RunSpec,
    typed: Sequence[str],
    cases: Sequence[tuple[str, WorldShape]],
    sizes: ScalingWorkload,
    folder: Path,
    out: CommandOutput,
) -> list[ScalingPoint]:
    from hpckit.cli.bench.measured_runs import carry_out, check, shared_cores
    from hpckit.cli.bench.scaling_figures import point
    from hpckit.cli.bench.world_shapes import overrides_of, threads_of
    from hpckit.rundir.code_snapshot.snapshot import find_project
    from hpckit.submit.compose import compose_spec
    from hpckit.submit.launch_command import pack
    from hpckit.submit.preflight.checks import with_absolute_paths
    from hpckit.submit.preparation import CommandOptions

    project = find_project(Path.cwd())
    worlds = [world for _, world in cases]
    threads = threads_of(spec, worlds, len(os.sched_getaffinity(0)))
    words = [overrides_of(spec, typed, *case, sizes, str(folder), threads) for case in cases]
    specs = [with_absolute_paths(compose_spec(each), Path.cwd()) for each in words]
    check(specs, project, pack)
    options = CommandOptions("hpckit bench scaling", is_queue_checked=False, say=out.note)
    points = []
    most = max(world.ranks for world in worlds)
    if cores := shared_cores(spec, most):
        out.note(f"up to {most} ranks share {cores} cores, so the loss is not only communication")
    with out.counting("training", len(cases)) as advance:
        for (model, world), each, made in zip(cases, words, specs, strict=True):
            events = carry_out(made, each, project, options)
            points.append(point(model, world, made.train.global_batch, events, threads))
            advance(1)
    return points


def _print_figures(out: CommandOutput, found: Mapping[str, Sequence[ScalingPoint]]) -> None:
    from hpckit.cli.bench.scaling_figures import conclusion, records
    from hpckit.cli.common.command_output import table

    head = ("model", "nodes x workers", "ranks", "batch", "step", "samples/s", "tokens/s")
    shares = ("efficiency", "communication", "data wait")
    shown = table(*head, *shares, right=(*head[2:], *shares))
    for model, own in found.items():
        for one in own:
            shown.add_row(model, *_cells(one, own))
    out.table(shown)
    for model, own in found.items():
        out.fact(model, conclusion(own))
    points = [one for own in found.values() for one in own]
    out.document({"points": records(points), "said": {m: conclusion(o) for m, o in found.items()}})


def _cells(one: ScalingPoint, own: Sequence[ScalingPoint]) -> list[str]:
    from hpckit.cli.bench.scaling_figures import trusted_efficiency

    efficiency = trusted_efficiency(one, own)
    tokens = "" if one.tokens_per_s is None else f"{one.tokens_per_s:,.0f}"
    share = "" if one.communication is None else f"{one.communication:.0%}"
    return [
        str(one.world),
        str(one.world.ranks),
        f"{one.global_batch:,}",
        f"{1e3 * one.step_s:.1f} ms",
        f"{one.samples_per_s:,.1f}",
        tokens,
        "?" if efficiency is None else f"{efficiency:.0%}",
        share,
        f"{one.data_wait:.0%}",
    ]
