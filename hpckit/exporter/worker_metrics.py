"""Metrics of a node's workers from its heartbeat table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.exporter.exposition import MetricSample
from hpckit.ipc.heartbeat_table import Heartbeat


def worker_samples(
    run: str, node: int, slots: Sequence[Heartbeat], device: str, now_s: float
) -> Iterator[MetricSample]:
    """Yields the metrics of workers with a heartbeat; `now_s` is CLOCK_MONOTONIC."""
    where = "gpu" if device == "cuda" else "host"
    for rank, slot in enumerate(slots):
        if slot.beat == 0:
            continue
        labels = (run, str(node), str(rank))
        yield MetricSample("hpckit_worker_step", labels, slot.step)
        age_s = max(0.0, now_s - slot.beat)
        yield MetricSample("hpckit_worker_heartbeat_age_seconds", labels, age_s)
        if slot.memory:
            yield MetricSample(f"hpckit_worker_{where}_memory_peak_bytes", labels, slot.memory)
