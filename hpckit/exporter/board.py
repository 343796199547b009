"""What a node's board says of its workers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.exporter.exposition import Sample
from hpckit.run.board import Slot


def worker_samples(
    run: str, node: int, slots: Sequence[Slot], device: str, now_s: float
) -> Iterator[Sample]:
    """Of those that have said something; `now_s`: CLOCK_MONOTONIC."""
    where = "gpu" if device == "cuda" else "host"
    for rank, slot in enumerate(slots):
        if slot.beat == 0:
            continue
        labels = (run, str(node), str(rank))
        yield Sample("hpckit_worker_step", labels, slot.step)
        age_s = max(0.0, now_s - slot.beat)
        yield Sample("hpckit_worker_heartbeat_age_seconds", labels, age_s)
        if slot.memory:
            yield Sample(f"hpckit_worker_{where}_memory_peak_bytes", labels, slot.memory)
