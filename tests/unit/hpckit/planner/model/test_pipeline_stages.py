"""What waits on the ranks of a pipeline, beside torch's own schedules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import assume, given
from hypothesis import strategies as st
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from hpckit.config.spec import ParallelSpec
from hpckit.planner.model.pipeline_stages import stages_of_rank

ONE_ONE = ParallelSpec(
    replicate=1,
    shard=1,
    tensor=1,
    pipeline=-1,
    expert=1,
    schedule="1f1b",
    zero=3,
    no_sync=True,
)
INTERLEAVED = replace(ONE_ONE, schedule="interleaved")


@given(st.integers(2, 6), st.integers(1, 24))
def test_as_many_wait_as_the_schedule_says(ranks: int, micro_batches: int) -> None:
    for rank in range(ranks):
        counts = {}
        for schedule in ("gpipe", "1f1b"):
            parallel = replace(ONE_ONE, schedule=schedule)
            (stage,) = stages_of_rank(12, parallel, ranks, rank, micro_batches)
            counts[schedule] = stage.waiting
            assert (stage.is_first, stage.is_last) == (rank == 0, rank == ranks - 1)
        assert counts == {"gpipe": micro_batches, "1f1b": min(micro_batches, ranks - rank)}


@given(st.integers(2, 5), st.integers(1, 20))
def test_interleaved_stages_have_what_torch_starts_before_it_goes_back(
    ranks: int, micro_batches: int
) -> None:
    assume(micro_batches >= ranks and micro_batches % (micro_batches // ranks) == 0)
    for rank in range(ranks):
        mine = stages_of_rank(12, INTERLEAVED, ranks, rank, micro_batches)
        most = _most_waiting(ranks, rank, micro_batches)
        assert sum(stage.waiting for stage in mine) == most
        assert [stage.blocks for stage in mine] == _blocks(ranks, rank)


def test_without_a_pipeline_all_of_it_is_one_stage() -> None:
    (stage,) = stages_of_rank(7, ONE_ONE, 1, 0, 5)
    assert (stage.blocks, stage.is_first, stage.is_last, stage.waiting) == (7, True, True, 1)


def _blocks(ranks: int, rank: int) -> list[int]:
    stages = 2 * ranks
    ends = [-(-12 * number // stages) for number in range(stages + 1)]
    return [ends[n + 1] - ends[n] for n in range(rank, stages, ranks)]


def _most_waiting(ranks: int, rank: int, micro_batches: int) -> int:
    """Of all stages of the rank, by the operations that torch lists for it."""
    rounds = max(1, micro_batches // ranks)
    schedule = SimpleNamespace(
        n_local_stages=2,
        pp_group_size=ranks,
        _n_microbatches=micro_batches,
        number_of_rounds=rounds,
        microbatches_per_round=micro_batches // rounds,
    )
    operations = ScheduleInterleaved1F1B._calculate_single_rank_operations(
        cast(Any, schedule), rank
    )
    waiting, most = Counter[int](), 0
    for operation in operations:
        if operation is not None:
            is_forward = operation.computation_type.name == "FORWARD"
            waiting[operation.stage_index] += 1 if is_forward else -1
            most = max(most, waiting.total())
    return most
