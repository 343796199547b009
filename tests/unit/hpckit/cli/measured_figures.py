"""Figures of `hpckit bench profile`, `precision` and `scaling` as runs would have them, and their
pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpckit.cli.bench.pages.precision_page import precision_page
from hpckit.cli.bench.pages.profile_page import profile_page
from hpckit.cli.bench.pages.scaling_page import scaling_page
from hpckit.cli.bench.precision_figures import PrecisionFigures, PrecisionRun, precision_run
from hpckit.cli.bench.profile_figures import ProfiledRun, profiled_run
from hpckit.cli.bench.scaling_figures import ScalingPoint, by_model, point
from hpckit.cli.bench.world_shapes import WorldShape
from hpckit.events.event_log import Event
from hpckit.events.schema import event_of
from hpckit.report.page.page_document import PageDocument
from hpckit.trainer.measurement.batch_size_figures import BatchSizeReport, BatchTiming
from hpckit.trainer.measurement.cost_report import (
    LayerMemory,
    MachinePeaks,
    OperationCost,
    StepCosts,
)

COSTS = StepCosts(
    device="cpu",
    torch="2.13.0",
    threads=2,
    first_step=9,
    steps=3,
    is_compiled=False,
    peaks=MachinePeaks("float32", 1e11, 1e10),
    operations=(
        OperationCost("aten::mm", 4, 0.02, None, "aten::mm", 1e9, 1e6),
        OperationCost("aten::add_", 9, 0.01, None, "aten::add_", 0.0, 5e7),
        OperationCost("aten::sum", 1, 0.005, None, "aten::sum", 0.0, 1e6),
        OperationCost("c10d::allreduce_", 1, 0.001, None, "gloo:all_reduce"),
    ),
    layers=(LayerMemory("stem", "Conv2d", 3 << 20), LayerMemory("blocks.0", "Block", 5 << 20)),
)


def step(number: int, **fields: Any) -> Event:
    return event_of(0.0, "step", {"step": number, "step_s": 0.1, "loss": 2.0, **fields})


def profiled() -> ProfiledRun:
    plain = [step(n, forward_s=0.04, backward_s=0.05, peak_rss_bytes=3e8) for n in range(4, 9)]
    slow = [step(n, step_s=9.0) for n in (1, 2, 3, 9, 10)]
    return profiled_run([*plain, *slow], COSTS, 16)


def trained(name: str = "fp16") -> PrecisionRun:
    events: list[Event] = [
        step(n, step_s=0.3 if n <= 2 else 0.1, accuracy=n / 10, skipped_steps=1.0, validation_s=0.0)
        for n in range(1, 7)
    ]
    events += [
        event_of(0.0, "validated", {"step": n, "val_accuracy": n / 8, "val_loss": 1.0})
        for n in (2, 4, 6)
    ]
    return precision_run(name, events, 2, 32)


def precisions() -> PrecisionFigures:
    batches = tuple(BatchTiming("fp16", n, s, None) for n, s in ((1, 0.1), (2, 0.1), (4, None)))
    report = BatchSizeReport("cpu", "2.13.0", 2, batches, {"bf16": "the GPU has none"})
    return PrecisionFigures((trained(), trained("fp32")), {"bf16": "failed"}, report)


def scaled(model: str, ranks: int, share: float, size: int) -> ScalingPoint:
    events = [step(n, loss=4.0 / n) for n in range(1, 12)]
    traced = [step(12, traced_step_s=0.1, communication_exposed_s=0.1 * share, loss=0.3)]
    return point(model, WorldShape(1, ranks), 8 * ranks, [*events, *traced], 1, size)


def scaling() -> list[ScalingPoint]:
    points = [scaled("small", n, 0.6 * (n > 1), 10_000) for n in (1, 2)]
    return points + [scaled("large", n, 0.6 * (n > 1), 1_000_000) for n in (1, 2)]


def bench_pages() -> dict[str, PageDocument]:
    """Return a page of each command by its name."""
    compiled = replace(profiled(), is_compiled=True, costs=replace(COSTS, is_compiled=True))
    return {
        "profile": profile_page("resnet_nano", [profiled(), compiled], "now"),
        "precision": precision_page("resnet_nano", precisions(), "now"),
        "scaling": scaling_page(by_model(scaling()), "weak scaling", "now", None),
    }
