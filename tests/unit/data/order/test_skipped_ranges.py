"""What is left out is left out on any world, and nothing else changes."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.order.rank_shares import GlobalStep, Tail, position_after, shares, step_at
from data.order.sample_order import Order
from data.order.sequence_packing import SPAN, SequencePack, SequencePacker
from data.order.skipped_ranges import MOST_RANGES, NOTHING_SKIPPED, SkippedRanges

RANGES = st.lists(st.tuples(st.integers(0, 250), st.integers(1, 40)), max_size=6).map(
    lambda pairs: SkippedRanges((first, first + size) for first, size in pairs)
)


def kept(skipped: SkippedRanges, count: int, first: int = 0) -> list[int]:
    """The first `count` kept positions from `first` on, found one by one."""
    found: list[int] = []
    at = first
    while len(found) < count:
        if not any(begin <= at < end for begin, end in skipped.ranges):
            found.append(at)
        at += 1
    return found


@given(RANGES, st.integers(0, 400))
def test_positions_are_counted_as_one_by_one(skipped: SkippedRanges, position: int) -> None:
    every = kept(skipped, 300)
    assert skipped.kept_at(np.arange(300)).tolist() == every
    assert skipped.kept_before(position) == sum(one < position for one in kept(skipped, 420))
    assert skipped.next_kept(position) == kept(skipped, 1, position)[0]
    assert SkippedRanges.of_state(skipped.to_state()) == skipped
    following = [first for first, _ in skipped.ranges if first > position]
    assert skipped.next_skipped(position) == min(following, default=None)


@given(RANGES, st.integers(0, 200), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_steps_have_what_is_kept_whatever_their_size(
    skipped: SkippedRanges, position: int, sizes: list[int]
) -> None:
    at, got = position, []
    for size in sizes:
        step = step_at(at, size, 70, "straddle", skipped)
        got += step.positions.tolist()
        assert step.mask.all()
        at = step.after
    assert got == kept(skipped, len(got), position)


@given(RANGES, st.integers(1, 25), st.integers(1, 60), st.sampled_from(["drop", "pad"]))
def test_epochs_end_as_without(skipped: SkippedRanges, size: int, samples: int, tail: Tail) -> None:
    if tail == "drop" and samples < size:
        return
    every = kept(skipped, 400)
    for epoch in range(5):
        of_epoch = [one for one in every if one // samples == epoch]
        steps = steps_of(epoch, size, samples, tail, skipped)
        got = [int(one) for step in steps for one in step.positions[step.mask]]
        assert got == of_epoch[: len(of_epoch) // size * size if tail == "drop" else None]
        for step in steps:  # what fills a step up is kept, too
            assert set(step.positions.tolist()) <= set(of_epoch)


def steps_of(
    epoch: int, size: int, samples: int, tail: Tail, skipped: SkippedRanges
) -> list[GlobalStep]:
    steps: list[GlobalStep] = []
    at = epoch * samples
    while (step := step_at(at, size, samples, tail, skipped)).positions[0] // samples == epoch:
        steps.append(step)
        at = step.after
    return steps


@given(
    skipped=RANGES,
    position=st.integers(0, 100),
    steps=st.integers(0, 12),
    size=st.integers(1, 20),
    tail=st.sampled_from(get_args(Tail)),
)
def test_many_steps_are_as_one_by_one(
    skipped: SkippedRanges, position: int, steps: int, size: int, tail: Tail
) -> None:
    at = position
    for _ in range(steps):
        at = step_at(at, size, 70, tail, skipped).after
    ahead = position_after(position, steps, size, 70, tail, skipped)
    step, other = (step_at(one, size, 70, tail, skipped) for one in (at, ahead))
    assert step.positions.tolist() == other.positions.tolist()
    assert skipped.later(skipped.later(position, 7), -7) == skipped.next_kept(position)


@given(RANGES, st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_ranks_share_each_step(skipped: SkippedRanges, world: int) -> None:
    order = Order([30, 17, 23], streams=3, window=1)
    steps = [step_at(p, 12, order.samples, "straddle", skipped) for p in (0, 40, 90)]
    of_ranks = [shares(steps, rank, world, order) for rank in range(world)]
    for number, step in enumerate(steps):
        taken = [p for of in of_ranks for p in of[number].positions.tolist()]
        assert sorted(taken) == step.positions.tolist()


@given(
    ranges=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(1, 12)), max_size=4
    ),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_packs_are_left_out_by_their_cursors(
    ranges: list[tuple[int, int, int]], sizes: list[int]
) -> None:
    order = Order([25, 14], streams=2, window=2)
    packer = SequencePacker(order, lambda at: at * 7919 % 31, length=20, block=16)
    skipped = SkippedRanges(
        (block * SPAN + first, block * SPAN + first + size) for block, first, size in ranges
    )
    every, at = [], 0
    for _ in range(400):
        step = packer.step(at, 1)
        block, number = divmod(step.after - 1, SPAN)
        every.append((block * SPAN + number, step.packs[0]))
        at = step.after
    wanted = [pack for cursor, pack in every if skipped.next_kept(cursor) == cursor]
    got: list[SequencePack] = []
    at = 0
    for size in sizes:
        step = packer.step(at, size, "straddle", skipped)
        got += step.packs
        at = step.after
    assert [pack.positions.tolist() for pack in got] == [
        pack.positions.tolist() for pack in wanted[: len(got)]
    ]


def test_ranges_that_touch_are_one() -> None:
    ranges = NOTHING_SKIPPED.with_range(8, 12).with_range(0, 4).with_range(4, 8)
    assert ranges.ranges == ((0, 12),)
    assert not NOTHING_SKIPPED


@pytest.mark.parametrize("pair", [(3, 3), (5, 4), (-1, 4), (0, 2**62 + 1)])
def test_an_impossible_range_is_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="a range of positions"):
        SkippedRanges([pair])


def test_more_ranges_than_a_state_may_hold_are_refused() -> None:
    every = [(3 * one, 3 * one + 1) for one in range(MOST_RANGES + 1)]
    assert len(SkippedRanges(every[1:]).ranges) == MOST_RANGES
    with pytest.raises(ValueError, match="1001 ranges"):
        SkippedRanges(every)


@pytest.mark.parametrize("saved", [3, [3], [[1, 2, 3]], [["1", "2"]], [[1.0, 2]], "12", None])
def test_what_is_no_state_is_refused(saved: object) -> None:
    with pytest.raises(ValueError, match="skipped has to be"):
        SkippedRanges.of_state(saved)
