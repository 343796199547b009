"""`hpckit bench precision`."""

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
    from hpckit.cli.bench.measured_workload import MeasuredWorkload
    from hpckit.cli.bench.precision_figures import PrecisionFigures, PrecisionRun
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.trainer.measurement.batch_size_figures import BatchSizeReport

_ENTRY = "hpckit.trainer.measurement.batch_size_timing:main"
_SEARCH_S = 86400
"""Seconds after which a search for the best batch counts as a hang."""
_BATCH = ("train.global_batch=32", "train.micro_batch=32")


def precision(
    overrides: WorkloadOverrides = None,
    precisions: Annotated[
        str, typer.Option(metavar="NAME,...", help="Options of the config group precision.")
    ] = "fp32,fp16,bf16",
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each run.")] = 3,
    epoch_samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Samples that count as an epoch; by default all generated images, or 2,048.",
            show_default=False,
        ),
    ] = None,
    batches: Annotated[
        bool, typer.Option("--batches/--no-batches", help="Also look for the best batch.")
    ] = True,
    most_batch: Annotated[
        int, typer.Option(min=1, help="Largest batch that is tried, in samples.")
    ] = 1024,
    step_seconds: Annotated[
        float,
        typer.Option(min=0.001, help="Seconds of a step from which on no larger batch is tried."),
    ] = 1.0,
    output: PageOption = None,
    json: JsonOption = False,
) -> None:
    """Compare speed, memory and accuracy of a model that is trained in several precisions.

    Example: hpckit bench precision model=resnet50 --epochs 2

    The same run is started in each precision, as launch.py would start it, in the folder
    precision-TIME beside other runs. A model of images without data.shards gets generated images
    and is validated after each epoch. It reports samples per second, peak memory, the accuracy (of
    text: the loss) after the same epochs, the first epoch against later ones, and steps that were
    skipped because gradients overflowed. Then one rank looks for the best batch: it doubles the
    batch until twice as many samples are not faster, or memory does not suffice. It writes a page
    with plots, and the numbers beside it as JSON; by default into the folder of the runs.
    """
    from hpckit.cli.bench.measured_workload import (
        TRAINED,
        choose_workload,
        is_trained_here,
        model_name,
    )
    from hpckit.cli.bench.pages.page_files import check_page, write_page_files
    from hpckit.cli.bench.pages.precision_page import precision_page
    from hpckit.cli.bench.precision_figures import PrecisionFigures, record
    from hpckit.cli.common.command_output import CommandOutput

    with reported_errors(json):
        check_page(output)
        names = _names(precisions)
        out, typed = CommandOutput(json), overrides or []
        work = choose_workload([*default_batch(typed), *typed])
        if not is_trained_here(work.spec):
            raise CommandError(
                f"entry: {work.spec.entry or 'a program'} decides itself in which precision it "
                "computes; give a model of hpckit's (model=)"
            )
        name = time.strftime("precision-%Y%m%d-%H%M%S")
        folder = (Path(work.spec.root).expanduser() / name).resolve()
        samples = epoch_samples or (2048 if work.images is None else TRAINED)
        runs, failures = _train(work, names, epochs, samples, folder, out)
        search = work, names, most_batch, step_seconds, folder, out
        sizes = _look_for_batch(*search) if batches else None
        found = PrecisionFigures(tuple(runs), failures, sizes)
        _print(out, found)
        out.fact("runs", str(folder))
        page = precision_page(model_name(work), found, time.strftime("%Y-%m-%d %H:%M"))
        numbers = {**record(found), "folder": str(folder)}
        write_page_files(out, page, numbers, output or folder / "precision.html")


def default_batch(typed: Sequence[str]) -> tuple[str, ...]:
    """Return overrides with the batch that is trained if the user says nothing of it: none, if an
    experiment does."""
    return () if any(word.startswith("experiment=") for word in typed) else _BATCH


def _names(precisions: str) -> list[str]:
    from hpckit.trainer.measurement.batch_size_figures import PRECISIONS

    names = [name.strip() for name in precisions.split(",")]
    for name in names:
        if name not in PRECISIONS:
            raise CommandError(f"--precisions: {name!r} is not one of {', '.join(PRECISIONS)}")
    return list(dict.fromkeys(names))


def _train(
    work: MeasuredWorkload,
    names: Sequence[str],
    epochs: int,
    samples: int,
    folder: Path,
    out: CommandOutput,
) -> tuple[list[PrecisionRun], dict[str, str]]:
    """Return the runs that reached their end, and why others did not."""
    from hpckit.cli.bench.measured_runs import prepared_runs
    from hpckit.cli.bench.measured_workload import with_images
    from hpckit.cli.bench.precision_figures import precision_run
    from hpckit.cli.bench.short_run import short_run_words

    batch = work.spec.train.global_batch
    epoch_steps = -(-samples // batch)
    words = with_images(work, folder, is_validated=True)
    if work.images is not None or work.spec.data.validation is not None:
        words.append(f"train.validate_every={epoch_steps}")
    words_of = [
        [
            *words,
            *short_run_words(name, str(folder), epochs * epoch_steps),
            *("train.trace_share=0", f"precision={name}"),
        ]
        for name in names
    ]
    prepared = prepared_runs("hpckit bench precision", words_of, out)
    runs: list[PrecisionRun] = []
    failures: dict[str, str] = {}
    with out.counting("training", len(prepared)) as advance:
        for name, one in zip(names, prepared, strict=True):
            try:
                events = one.carry_out()
            except CommandError as error:
                failures[name] = str(error).partition("\n")[0]
            else:
                runs.append(precision_run(name, events, epoch_steps, batch))
            advance(1)
    if not runs:
        raise CommandError("; ".join(failures.values()))
    return runs, failures


def _look_for_batch(
    work: MeasuredWorkload,
    names: Sequence[str],
    most: int,
    step_s: float,
    folder: Path,
    out: CommandOutput,
) -> BatchSizeReport | None:
    """Return the timings of batches of growing size on one rank; None: they could not be made, of
    which the user is informed. What was trained before is not lost by it."""
    from hpckit.cli.bench.measured_runs import prepared_runs
    from hpckit.cli.bench.measured_workload import with_images
    from hpckit.cli.bench.short_run import short_run_words
    from hpckit.config.spec_parser import SpecError
    from hpckit.submit.composition.hydra_values import quoted
    from hpckit.trainer.measurement.batch_size_figures import REPORT

    file = folder / "batches.json"
    search = f"precisions: [{','.join(names)}], most: {most}, step_s: {step_s}"
    search += f", output: {quoted(str(file))}"
    try:
        words = [
            *with_images(work, folder, is_validated=False),
            *short_run_words("batches", str(folder), 1),
            *("launch.nodes=1", "launch.nproc_per_node=1", "train.trace_share=0"),
            f"hang.first_step_s={_SEARCH_S}",  # all of the search is one step
            *(f"entry={_ENTRY}", f"user_config={{{search}}}"),
        ]
        (run,) = prepared_runs("hpckit bench precision", [words], out)
        with out.waiting("looking for the best batch"):
            run.carry_out()
        return REPORT.validate_json(file.read_bytes())
    except (CommandError, SpecError, OSError) as error:
        out.note(f"the best batch is not known: {error}")
        return None


def _print(out: CommandOutput, found: PrecisionFigures) -> None:
    from hpckit.cli.bench.pages.page_files import print_table
    from hpckit.cli.bench.pages.precision_page import precisions_table
    from hpckit.cli.bench.precision_figures import conclusions

    print_table(out, precisions_table(found))
    for name, text in conclusions(found):
        out.fact(name, text)
