"""The page of `hpckit bench precision`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.cli.bench.precision_figures import (
    PrecisionFigures,
    PrecisionRun,
    best_of,
    conclusions,
)
from hpckit.planner.plan_text import seconds
from hpckit.report.page.colour_meanings import of_run
from hpckit.report.page.page_document import (
    BarsBlock,
    Block,
    FactsBlock,
    PageDocument,
    Plot,
    PlotLine,
    Section,
    TableBlock,
    TextBlock,
)
from hpckit.text.quantities import size
from hpckit.trainer.measurement.batch_size_figures import BatchSizeReport


def precision_page(model: str, found: PrecisionFigures, as_of: str) -> PageDocument:
    """Return the page."""
    sections = [
        Section("Result", tuple(_result(found))),
        Section("Loss and accuracy", tuple(_learning(found))),
        Section("Epochs", tuple(_epochs(found))),
    ]
    if found.batches is not None:
        sections.append(Section("Size of the batch", tuple(_batches(found.batches))))
    return PageDocument(f"Precisions of {model}", as_of, tuple(sections))


def precisions_table(found: PrecisionFigures) -> TableBlock:
    """Return the precisions as a table."""
    head = ("precision", "samples/s", "step", "peak memory", "accuracy", "loss")
    more = ("first epoch", "skipped steps", "best batch")
    rows = tuple(_row(run, found) for run in found.runs)
    return TableBlock((*head, *more), rows, words=("precision",))


def _row(run: PrecisionRun, found: PrecisionFigures) -> tuple[str, ...]:
    last, factor = run.epochs[-1], run.first_epoch_factor
    loss = last.loss if last.validation_loss is None else last.validation_loss
    best = best_of(found, run.precision)
    return (
        run.precision,
        f"{run.samples_per_s:,.1f}",
        seconds(run.step_s),
        "" if run.peak_bytes is None else size(run.peak_bytes),
        "" if last.accuracy is None else f"{last.accuracy:.1%}",
        "" if loss is None else f"{loss:.4g}",
        "" if factor is None else f"{factor:.2f}x",
        str(run.skipped_steps),
        "" if best is None else str(best),
    )


def _result(found: PrecisionFigures) -> Iterator[Block]:
    yield precisions_table(found)
    yield FactsBlock(tuple(conclusions(found)))
    if any(not run.is_gpu for run in found.runs):
        yield TextBlock(
            "Without a GPU the peak is that of the whole process, with Python and torch. Many CPUs "
            "compute 16-bit formats more slowly than fp32."
        )


def _learning(found: PrecisionFigures) -> Iterator[Block]:
    lines = [
        PlotLine(run.precision, run.losses, of_run(number))
        for number, run in enumerate(found.runs)
        if run.losses
    ]
    if lines:
        yield Plot("Loss over steps", "loss", lines)
    accuracies = [
        PlotLine(
            run.precision,
            [(float(n), epoch.accuracy) for n, epoch in enumerate(run.epochs, start=1)],
            of_run(number),
            has_dots=True,
        )
        for number, run in enumerate(found.runs)
        if any(epoch.accuracy is not None for epoch in run.epochs)
    ]
    if accuracies:
        yield Plot("Accuracy by epoch", "accuracy", accuracies, from_zero=True, over="epoch")
    else:
        yield TextBlock("A model of text has no accuracy: compare the losses.")


def _epochs(found: PrecisionFigures) -> Iterator[Block]:
    if not found.runs:
        return
    count = max(len(run.epochs) for run in found.runs)
    names = [f"epoch {number}" for number in range(1, count + 1)]
    bars = [
        (run.precision, [epoch.seconds for epoch in run.epochs])
        for run in found.runs
        if len(run.epochs) == count
    ]
    yield BarsBlock("Time of epochs", "s", names, bars)
    rows = tuple(
        (
            run.precision,
            str(number),
            f"{epoch.seconds:.2f} s",
            f"{epoch.samples_per_s:,.1f}",
            "" if epoch.loss is None else f"{epoch.loss:.4g}",
            "" if epoch.accuracy is None else f"{epoch.accuracy:.1%}",
        )
        for run in found.runs
        for number, epoch in enumerate(run.epochs, start=1)
    )
    head = ("precision", "epoch", "time", "samples/s", "mean loss", "accuracy")
    yield TableBlock(head, rows, words=("precision",))
    yield TextBlock(
        "Times are those of steps without validation. The first epoch also waits for memory, "
        "kernels that are chosen or compiled, and data that no cache holds."
    )


def _batches(report: BatchSizeReport) -> Iterator[Block]:
    lines, rows = [], []
    for number, precision in enumerate(dict.fromkeys(one.precision for one in report.timings)):
        own = [one for one in report.timings if one.precision == precision]
        points = [(float(one.samples), one.samples_per_s) for one in own if one.step_s is not None]
        if points:
            lines.append(PlotLine(precision, points, of_run(number), has_dots=True))
        for one in own:
            time = "out of memory" if one.step_s is None else seconds(one.step_s)
            peak = "" if one.peak_bytes is None else size(one.peak_bytes)
            rows.append((precision, f"{one.samples:,}", time, f"{one.samples_per_s:,.1f}", peak))
    if lines:
        yield Plot(
            "Speed by size of the batch",
            "samples/s",
            lines,
            from_zero=True,
            over="samples of a batch",
            is_over_log=True,
        )
    head = ("precision", "samples", "step", "samples/s", "peak memory")
    yield TableBlock(head, tuple(rows), words=("precision",))
    yield FactsBlock(tuple(report.failures.items()))
    yield TextBlock(
        f"Steps on batches without data, on {report.device} with {report.threads} threads, so that "
        "nothing waits for data. The best batch is the smallest with at least 97 % of the highest "
        "speed that was measured."
    )
