"""`hpckit bench profile`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.bench.workload_options import PageOption, WorkloadOverrides
from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import JsonOption

if TYPE_CHECKING:
    from hpckit.cli.bench.profile_figures import ProfiledRun
    from hpckit.cli.common.command_output import CommandOutput

_PRINTED = 6
"""Number of operations that are printed."""


def profile(
    overrides: WorkloadOverrides = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps under torch's profiler.")] = 3,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile", help="Also measure the same run with compiled blocks."
        ),
    ] = True,
    output: PageOption = None,
    json: JsonOption = False,
) -> None:
    """Measure which operations and layers of a model cost most, and what bounds them.

    Example: hpckit bench profile model=resnet50 precision=bf16 train.micro_batch=64
    train.global_batch=64

    A short run is started, as launch.py would start it, in the folder profile-TIME beside other
    runs; then the same with compiled blocks. A model of images without data.shards gets generated
    images. With entry=, it is a training function of yours. It reports the operations with the most
    time, with kernel, CPU and GPU time, whether memory or computation bounds them by a roofline
    that is measured on the same device, and the memory that each layer keeps for the backward pass.
    It writes a page with plots, and the numbers beside it as JSON; by default into the folder of
    the runs.
    """
    from hpckit.cli.bench.measured_workload import (
        choose_workload,
        is_trained_here,
        model_name,
        with_images,
    )
    from hpckit.cli.bench.pages.page_files import check_page, write_page_files
    from hpckit.cli.bench.pages.profile_page import profile_page
    from hpckit.cli.bench.profile_figures import record
    from hpckit.cli.common.command_output import CommandOutput

    with reported_errors(json):
        check_page(output)
        out, work = CommandOutput(json), choose_workload(overrides or [])
        if work.spec.command is not None:
            raise CommandError(
                "command: a program cannot be profiled here: give a training function (entry=), or "
                "a model"
            )
        name = time.strftime("profile-%Y%m%d-%H%M%S")
        folder = (Path(work.spec.root).expanduser() / name).resolve()
        words = with_images(work, folder, is_validated=False)
        if not is_trained_here(work.spec):
            compiled = False  # what of it is compiled is said in its own code
        runs = _measure(words, steps, compiled, folder, out)
        _print(out, runs)
        out.fact("runs", str(folder))
        title = model_name(work)
        page = profile_page(title, runs, time.strftime("%Y-%m-%d %H:%M"))
        numbers = {"runs": [record(run) for run in runs], "folder": str(folder)}
        write_page_files(out, page, numbers, output or folder / "profile.html")


def _measure(
    words: Sequence[str], steps: int, compiled: bool, folder: Path, out: CommandOutput
) -> list[ProfiledRun]:
    """Return the run as it is, and the one with compiled blocks if that is possible."""
    from hpckit.cli.bench.measured_runs import prepared_runs
    from hpckit.cli.bench.profile_figures import START, profiled_run
    from hpckit.cli.bench.short_run import short_run_words
    from hpckit.rundir.directory import run_directory
    from hpckit.trainer.measurement.cost_report import COSTS, costs_file

    variants = {"profile": ["memory.compile=false"], "profile-compiled": ["memory.compile=true"]}
    if not compiled:
        variants = {"profile": []}
    words_of = [
        [
            *words,
            *short_run_words(name, str(folder), START + steps + 1),
            *("train.trace_share=0", f"debug.profile.start={START}"),
            *(f"debug.profile.steps={steps}", "debug.profile.costs=true", *own),
        ]
        for name, own in variants.items()
    ]
    prepared = prepared_runs("hpckit bench profile", words_of, out)
    runs: list[ProfiledRun] = []
    with out.counting("profiling", len(prepared)) as advance:
        for name, one in zip(variants, prepared, strict=True):
            try:
                events = one.carry_out()
            except CommandError as error:
                if not runs:
                    raise
                out.note(f"with compiled blocks it was not measured: {error}")
                break
            file = costs_file(run_directory(one.spec, Path.cwd()).profile)
            if file is None:
                raise CommandError(f"{name} has written no costs: see hpckit logs {folder / name}")
            costs = COSTS.validate_json(file.read_bytes())
            runs.append(profiled_run(events, costs, one.spec.train.global_batch))
            advance(1)
    return runs


def _print(out: CommandOutput, runs: Sequence[ProfiledRun]) -> None:
    from hpckit.cli.bench.pages.page_files import print_table
    from hpckit.cli.bench.pages.profile_page import operations_table
    from hpckit.cli.bench.profile_figures import conclusions

    print_table(out, operations_table(runs[0], _PRINTED), folded=("bound", "kernel"))
    for name, text in conclusions(runs):
        out.fact(name, text)
