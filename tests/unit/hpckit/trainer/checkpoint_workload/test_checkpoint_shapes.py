"""The workloads have the published sizes, and a rank its share of them."""

from __future__ import annotations

import pytest

from hpckit.trainer.checkpoint_workload.checkpoint_shapes import (
    GIB,
    SCALES,
    gib_per_s,
    plan_of,
    rank_tensors,
)


@pytest.mark.parametrize("scale", ["8b", "70b", "405b"])
def test_a_checkpoint_has_the_published_size(scale: str) -> None:
    shape = SCALES[scale]
    assert shape.bytes / GIB == pytest.approx(shape.published_gb, rel=0.005)


def test_the_largest_one_has_the_size_of_its_published_architecture() -> None:
    """The published 18 TB are the 15,426 of its optimizer and weights and 2,571 besides."""
    assert SCALES["1t"].bytes / GIB == pytest.approx(15_426, rel=0.001)


@pytest.mark.parametrize("scale", SCALES)
def test_the_ranks_hold_the_checkpoint_together(scale: str) -> None:
    shape = SCALES[scale]
    tensors = rank_tensors(shape)
    weights = sum(tensor.bytes for tensor in tensors if tensor.is_weight)
    others = sum(tensor.bytes for tensor in tensors) - weights
    total = weights * shape.weight_shards + others * shape.ranks
    assert total == pytest.approx(shape.bytes, rel=0.001)


@pytest.mark.parametrize("scale", SCALES)
def test_a_fraction_has_the_same_tensors_with_fewer_rows(scale: str) -> None:
    whole, part = rank_tensors(SCALES[scale]), rank_tensors(SCALES[scale], 0.01)
    assert [tensor.name for tensor in part] == [tensor.name for tensor in whole]
    assert all(1 <= few.rows <= many.rows for few, many in zip(part, whole, strict=True))
    sizes = [sum(tensor.bytes for tensor in tensors) for tensors in (part, whole)]
    assert sizes[0] == pytest.approx(0.01 * sizes[1], rel=0.1)


def test_a_plan_counts_each_rank() -> None:
    plan = plan_of(SCALES["8b"])
    assert plan.rank_bytes * 8 == pytest.approx(SCALES["8b"].bytes, rel=0.001)
    assert plan.put >= plan.packs + 8, "each pack and each part record"


def test_throughput_is_the_mean_of_the_transfers() -> None:
    assert gib_per_s(4 * GIB, [1.0, 4.0]) == 2.5
