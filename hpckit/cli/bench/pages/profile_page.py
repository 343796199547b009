"""The page of `hpckit bench profile`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.cli.bench.profile_figures import (
    MOST_COSTLY,
    ProfiledRun,
    bound_of,
    conclusions,
    whole_step,
)
from hpckit.planner.plan_text import seconds
from hpckit.report.page.colour_meanings import Meaning, of_run
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
from hpckit.text.quantities import decimal, size
from hpckit.trainer.measurement.cost_report import (
    OperationCost,
    StepCosts,
    peak_of_activations,
    roofline_point,
)

_SHOWN = 12
"""Number of operations in the table."""
_DRAWN = 5
"""Number of operations in plots."""
_LAYERS = 24
"""Number of layers in the plot, those with the most memory."""
_MIB, _GIGA = 2**20, 1e9


def profile_page(model: str, runs: Sequence[ProfiledRun], as_of: str) -> PageDocument:
    """Return the page. The first of `runs` is the one without compiled blocks."""
    first = runs[0]
    sections = [
        Section("Result", tuple(_result(runs))),
        Section("Most costly operations", tuple(_operations(first))),
        Section("Roofline", tuple(_roofline(first))),
        Section("Memory of activations by layer", tuple(_layers(first.costs))),
    ]
    if len(runs) > 1:
        sections.append(Section("With compiled blocks", tuple(_compiled(runs))))
    sections.append(Section("How it was measured", (TextBlock(_method(first)),)))
    return PageDocument(f"Profile of {model}", as_of, tuple(sections))


def operations_table(run: ProfiledRun, most: int) -> TableBlock:
    """Return the operations with the most time as a table."""
    head = ("operation", "calls", "CPU", "GPU", "share", "FLOP", "moved", "bound", "kernel")
    cells = [dict(zip(head, _row(one, run), strict=True)) for one in run.costs.operations[:most]]
    shown = [name for name in head if any(row[name] for row in cells)]
    rows = tuple(tuple(row[name] for name in shown) for row in cells)
    return TableBlock(shown, rows, words=("operation", "bound", "kernel"))


def _row(one: OperationCost, run: ProfiledRun) -> tuple[str, ...]:
    return (
        one.name,
        f"{one.calls:,.0f}",
        seconds(one.cpu_s),
        "" if one.device_s is None else seconds(one.device_s),
        f"{one.seconds / run.operations_s:.1%}",
        "" if one.flops is None else decimal(one.flops, "FLOP"),
        "" if one.bytes is None else size(one.bytes),
        bound_of(one, run.costs),
        one.kernel,
    )


def _result(runs: Sequence[ProfiledRun]) -> Iterator[Block]:
    first = runs[0]
    rows = [
        ("device", f"{first.costs.device}, {first.costs.threads} threads"),
        ("step", seconds(first.step_s)),
        ("samples/s", f"{first.samples_per_s:,.1f}"),
        ("activations", size(peak_of_activations(first.costs.layers))),
    ]
    if (point := whole_step(first)) is not None:
        rows.append(("bound by", point.bound))
    if first.peak_bytes is not None:
        name = "peak memory" if first.costs.is_gpu else "peak of the process"
        rows.append((name, size(first.peak_bytes)))
    rows += [("step, compiled", seconds(other.step_s)) for other in runs[1:]]
    yield FactsBlock(tuple(rows), are_key=True)
    yield FactsBlock(tuple(conclusions(runs)))


def _operations(run: ProfiledRun) -> Iterator[Block]:
    yield TextBlock(
        f"The first {MOST_COSTLY} take most time. Times are those of a step under the profiler, "
        "which makes operations slower: compare shares."
    )
    yield _time_bars([("profiled step", run)])
    yield operations_table(run, _SHOWN)
    if run.phases:
        names, values = list(run.phases), [1e3 * spent_s for spent_s in run.phases.values()]
        yield BarsBlock("Time of a step by phase, not profiled", "ms", names, [("step", values)])


def _time_bars(runs: Sequence[tuple[str, ProfiledRun]]) -> BarsBlock:
    names = list(
        dict.fromkeys(one.name for _, run in runs for one in run.costs.operations[:_DRAWN])
    )
    bars = []
    for title, run in runs:
        times = {one.name: one.seconds for one in run.costs.operations}
        own = [1e3 * times.get(name, 0.0) for name in names]
        bars.append((title, [*own, 1e3 * max(0.0, run.operations_s) - sum(own)]))
    return BarsBlock("Time in operations", "ms", (*names, "other operations"), bars)


def _roofline(run: ProfiledRun) -> Iterator[Block]:
    costs, lines = run.costs, list[PlotLine]()
    for number, one in enumerate(costs.operations[:_DRAWN]):
        point = roofline_point(one.flops, one.bytes, one.seconds, costs.peaks)
        if point is not None and point.intensity > 0:
            at = (point.intensity, point.reached / _GIGA)
            lines.append(PlotLine(one.name, [at], of_run(number), are_dots=True))
    if (point := whole_step(run)) is not None and point.intensity > 0:
        at = (point.intensity, point.reached / _GIGA)
        lines.append(PlotLine("whole step", [at], of_run(_DRAWN), are_dots=True))
    if not lines:
        yield TextBlock("No operation was counted.")
        return
    places = [line.points[0][0] for line in lines]
    ends = (
        min(*places, costs.peaks.ridge) / 4,
        costs.peaks.ridge,
        max(*places, costs.peaks.ridge) * 4,
    )
    lines.append(PlotLine("roofline", [_roof(end, costs) for end in ends], Meaning.PARENT))
    yield Plot("Roofline", "GFLOP/s", lines, over="FLOP per byte", is_over_log=True)
    peaks = costs.peaks
    yield TextBlock(
        f"The roofline is measured on this device: {decimal(peaks.flops_per_s, 'FLOP/s')} in a "
        f"matrix product in {peaks.dtype}, {decimal(peaks.bytes_per_s, 'B/s')} in a copy. Left of "
        f"{peaks.ridge:.1f} FLOP per byte memory is the limit, right of it computation. Bytes are "
        "inputs and outputs of operations, so a point may lie above the roof if a cache holds "
        "them. Operations without matrix products, convolutions or attention have no FLOP here: "
        "memory bounds them."
    )


def _roof(intensity: float, costs: StepCosts) -> tuple[float, float]:
    limit = min(costs.peaks.flops_per_s, intensity * costs.peaks.bytes_per_s)
    return intensity, limit / _GIGA


def _layers(costs: StepCosts) -> Iterator[Block]:
    if not costs.layers:
        yield TextBlock("No layer was seen: track the model with run.track(model=model).")
        return
    least = sorted((layer.bytes for layer in costs.layers), reverse=True)[:_LAYERS][-1]
    shown = [layer for layer in costs.layers if layer.bytes >= least][:_LAYERS]
    bars = [(layer.name, [layer.bytes / _MIB]) for layer in shown]
    yield BarsBlock("Kept for the backward pass", "MiB", ("kept by the layer",), bars)
    before, rows = 0, []
    for layer in costs.layers:
        before += layer.bytes
        rows.append((layer.name, layer.kind, size(layer.bytes), size(before)))
    head = ("layer", "class", "keeps", "kept so far")
    yield TableBlock(head, tuple(rows), words=("layer", "class"))
    yield TextBlock(
        "In the order of the forward pass of a micro-batch. The last sum is the peak, when the "
        "backward pass begins, without what an operation needs meanwhile."
    )


def _compiled(runs: Sequence[ProfiledRun]) -> Iterator[Block]:
    head = ("blocks", "step", "samples/s", "peak memory", "in operations", "elsewhere")
    rows = tuple(
        (
            "compiled" if run.is_compiled else "not compiled",
            seconds(run.step_s),
            f"{run.samples_per_s:,.1f}",
            "" if run.peak_bytes is None else size(run.peak_bytes),
            seconds(run.operations_s),
            seconds(max(0.0, run.step_s - run.operations_s)),
        )
        for run in runs
    )
    yield TableBlock(head, rows, words=("blocks",))
    yield _time_bars([("compiled" if run.is_compiled else "not compiled", run) for run in runs])
    yield operations_table(runs[1], _SHOWN)


def _method(run: ProfiledRun) -> str:
    costs = run.costs
    last = costs.first_step + costs.steps - 1
    return (
        f"Rank 0 of a run. Speeds are medians of the steps before step {costs.first_step}; "
        f"operations are those of steps {costs.first_step} to {last} under torch.profiler; FLOP, "
        f"bytes and layers are counted in step {last + 1}. torch {costs.torch}."
    )
