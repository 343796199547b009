"""The pipeline stages of each rank, and how many micro-batches wait there for their backward
pass."""

from __future__ import annotations

from dataclasses import dataclass

from hpckit.config.parallel_degrees import blocks_of_stages, stage_count, stages_per_rank
from hpckit.config.spec import ParallelSpec


@dataclass(frozen=True)
class PipelineStage:
    """A part of a model: without a pipeline, all of it."""

    blocks: int
    is_first: bool
    is_last: bool
    waiting: int
    """Largest number of micro-batches whose activations are kept at the same time."""


def stages_of_rank(
    layers: int, parallel: ParallelSpec, ranks: int, rank: int, micro_batches: int
) -> list[PipelineStage]:
    """Return the stages of one of the `ranks` of a pipeline, for so many micro-batches a step."""
    blocks = blocks_of_stages(layers, stage_count(parallel, ranks))
    mine = list(range(rank, len(blocks), ranks))
    waiting = _waiting(parallel, ranks, rank, micro_batches)
    # On a rank with several stages, most of the waiting micro-batches are in the first stages.
    each = [-(-(waiting - later) // len(mine)) for later in range(len(mine))]
    return [
        PipelineStage(len(blocks[number]), number == 0, number == len(blocks) - 1, count)
        for number, count in zip(mine, each, strict=True)
    ]


def _waiting(parallel: ParallelSpec, ranks: int, rank: int, micro_batches: int) -> int:
    """Return the waiting micro-batches over all stages of the rank."""
    if ranks == 1:
        return 1
    if parallel.schedule == "gpipe":
        return micro_batches
    if parallel.schedule == "1f1b":
        return min(micro_batches, ranks - rank)
    # Narayanan et al. 2021, section 2.2, as torch's ScheduleInterleaved1F1B counts its warm-up.
    stages = stages_per_rank(parallel)
    round_of = micro_batches // max(1, micro_batches // ranks)
    warm_up = (stages - 1) * round_of + 2 * (ranks - 1 - rank)
    return min(warm_up + 1, stages * micro_batches)
