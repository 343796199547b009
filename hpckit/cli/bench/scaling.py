"""`hpckit bench scaling`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import JsonOption, LaunchOverrides

if TYPE_CHECKING:
    from hpckit.cli.bench.scaling_figures import ScalingPoint
    from hpckit.cli.bench.world_shapes import ScalingWorkload, WorldShape
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.config.spec import RunSpec

_MODELS = "gpt_nano,gpt_tiny,gpt_mini"
_PICTURES = (".svg", ".png", ".pdf")
_MOST_CORES = 8
"""Number of ranks up to which a machine without GPUs is measured if no number is given."""


def scaling(
    overrides: LaunchOverrides = None,
    worlds: Annotated[
        str | None,
        typer.Option(
            metavar="NxW,...",
            help="Nodes x workers of each world; by default doubling up to launch.nodes x "
            "launch.nproc_per_node, or, where neither is given, to all GPUs or cores of this "
            "machine.",
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
    target_loss: Annotated[
        float | None,
        typer.Option(
            help="Loss whose time is compared; by default the lowest that all runs of a model have "
            "reached.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "--output",
            "-o",
            help="File of the page: .html; or only of a chart: .svg, .png or .pdf.",
        ),
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
    the cores in the largest world. It writes a page with plots, and the numbers beside it as JSON;
    by default into the folder of the runs.
    """
    from hpckit.cli.bench.pages.page_files import check_folder, check_page, write_page_files
    from hpckit.cli.bench.pages.scaling_page import scaling_page
    from hpckit.cli.bench.scaling_figures import by_model, conclusion, explain, records
    from hpckit.cli.bench.world_shapes import ScalingWorkload
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.submit.compose import compose_spec

    with reported_errors(json):
        is_picture = output is not None and output.suffix in _PICTURES
        if output is not None and not is_picture and output.suffix != ".html":
            raise CommandError(f"--out: {output} must end in .html, .svg, .png or .pdf")
        draw = None
        if is_picture and output is not None:
            draw = _plot()
            check_folder(output)
        else:
            check_page(output)
        typed, out = overrides or [], CommandOutput(json)
        spec = compose_spec(typed)
        folder = Path(spec.root).expanduser() / time.strftime("scaling-%Y%m%d-%H%M%S")
        sizes = ScalingWorkload(steps, is_strong=strong)
        cases = _cases(spec, typed, models, worlds)
        measured, failures = _measure(spec, typed, cases, sizes, folder.resolve(), out)
        found = by_model(measured)
        _print_figures(out, found)
        title = f"{'strong' if strong else 'weak'} scaling"
        points = [one for own in found.values() for one in own]
        numbers = {
            "points": records(points, target_loss),
            "said": {model: conclusion(own) for model, own in found.items()},
            "why": {model: explain(model, found) for model in found},
            "failures": failures,
            "runs": str(folder),
        }
        out.fact("runs", str(folder))
        if draw is not None:
            assert output is not None
            draw(found, title, output)
            out.fact("picture", str(output))
            out.document(numbers)
        else:
            as_of = time.strftime("%Y-%m-%d %H:%M")
            page = scaling_page(found, title, as_of, target_loss, failures)
            write_page_files(out, page, numbers, output or folder / "scaling.html")


def _plot() -> Callable[[Mapping[str, Sequence[ScalingPoint]], str, Path], None]:
    try:
        from hpckit.cli.bench.scaling_plot import draw
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the picture needs the package {error.name}: pip install {error.name}"
        ) from error
    return draw


def _cases(
    spec: RunSpec, typed: Sequence[str], models: str, worlds: str | None
) -> list[tuple[str, WorldShape]]:
    from hpckit.cli.bench.world_shapes import doubling, parse_world

    try:
        asked = [parse_world(text) for text in worlds.split(",")] if worlds else []
    except ValueError as error:
        raise CommandError(f"--worlds: {error}") from None
    workers = spec.launch.nproc_per_node
    if spec.cluster.kind == "local" and not any("launch.n" in word for word in typed):
        workers = max(workers, _usable_ranks())
    all_worlds = asked or doubling(spec.launch.nodes, workers)
    return [
        (model.strip(), world) for model in models.split(",") for world in dict.fromkeys(all_worlds)
    ]


def _usable_ranks() -> int:
    """Return the number of GPUs of this machine, or else of its cores, within limits."""
    from hpckit.agent.device_assignment import visible_gpus

    cores = min(_MOST_CORES, len(os.sched_getaffinity(0)))
    return len(visible_gpus(os.environ)) or cores


def _measure(
    spec: RunSpec,
    typed: Sequence[str],
    cases: Sequence[tuple[str, WorldShape]],
    sizes: ScalingWorkload,
    folder: Path,
    out: CommandOutput,
) -> tuple[list[ScalingPoint], dict[str, str]]:
    """Return the figures of the runs that reached their end, and why others did not, by model and
    world.

    Raises:
        CommandError: none reached its end.
    """
    from hpckit.cli.bench.measured_runs import prepared_runs, shared_cores
    from hpckit.cli.bench.scaling_figures import point
    from hpckit.cli.bench.world_shapes import gradient_bytes, overrides_of, threads_of

    worlds = [world for _, world in cases]
    threads = threads_of(spec, worlds, len(os.sched_getaffinity(0)))
    words = [overrides_of(spec, typed, *case, sizes, str(folder), threads) for case in cases]
    prepared = prepared_runs("hpckit bench scaling", words, out)
    points: list[ScalingPoint] = []
    failures: dict[str, str] = {}
    most = max(world.ranks for world in worlds)
    if cores := shared_cores(spec, most):
        out.note(f"up to {most} ranks share {cores} cores, so the loss is not only communication")
    with out.counting("training", len(cases)) as advance:
        for (model, world), one in zip(cases, prepared, strict=True):
            try:
                events = one.carry_out()
            except CommandError as error:  # hours of other runs are not given up for it
                failures[f"{model} on {world}"] = str(error).partition("\n")[0]
                out.note(f"{model} on {world} was not measured: {error}")
            else:
                batch, size = one.spec.train.global_batch, gradient_bytes(one.spec)
                points.append(point(model, world, batch, events, threads, size))
            advance(1)
    if not points:
        raise CommandError("no run has reached its end")
    return points, failures


def _print_figures(out: CommandOutput, found: Mapping[str, Sequence[ScalingPoint]]) -> None:
    from hpckit.cli.bench.pages.page_files import print_table
    from hpckit.cli.bench.pages.scaling_page import figures_table
    from hpckit.cli.bench.scaling_figures import conclusion, explain

    print_table(out, figures_table(found))
    for model, own in found.items():
        out.fact(model, "; ".join(filter(None, (conclusion(own), explain(model, found)))))
