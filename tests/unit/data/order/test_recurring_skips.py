"""What is left out stays so in every later epoch, and all else keeps its order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order.grown_order import DatasetVersion, GrownOrder
from data.order.keyed_permutation import Ints
from data.order.mixture import Mixture, segment
from data.order.rank_shares import step_at
from data.order.recurring_skips import MixedSkips, RecurringSkips
from data.order.sample_order import Order
from data.order.skipped_ranges import SkippedRanges
from tests.effort import times

COUNTS = st.lists(st.sampled_from([0, 1, 5, 30]), min_size=2, max_size=5).filter(
    lambda counts: sum(counts) > 10
)
RANGES = st.lists(st.tuples(st.integers(0, 70), st.integers(1, 3)), min_size=1, max_size=2).map(
    lambda pairs: SkippedRanges((first, first + size) for first, size in pairs)
)


def kept(skipped: SkippedRanges, samples: Sequence[object]) -> list[int]:
    """The kept positions, of which `samples` has the samples, found one by one."""
    found, gone = list[int](), set[object]()
    for position, sample in enumerate(samples):
        if any(first <= position < end for first, end in skipped.ranges):
            gone.add(sample)
        elif sample not in gone:
            found.append(position)
    return found


def check(skips: SkippedRanges, due: list[int], until: int) -> None:
    assert skips.kept_at(np.arange(len(due))).tolist() == due
    for position in range(0, until, 7):
        assert skips.kept_before(position) == sum(one < position for one in due)
        following = [one for one in due if one >= position]
        assert skips.next_kept(position) == following[0]
        assert skips.later(position, 3) == following[3]


@settings(max_examples=times(15), deadline=None)
@given(COUNTS, RANGES, st.integers(1, 6), st.integers(0, 9))
def test_positions_are_those_that_are_found_one_by_one(
    counts: list[int], skipped: SkippedRanges, streams: int, seed: int
) -> None:
    order = Order(counts, seed=seed, streams=streams, window=2)
    shards, samples = order.locate(np.arange(70 + 5 * order.samples))
    every = list(zip(shards.tolist(), samples.tolist(), strict=True))
    skips = RecurringSkips(skipped, order)
    check(skips, kept(skipped, every), 70 + 2 * order.samples)
    assert skips == skipped
    assert skips.to_state() == skipped.to_state()


@pytest.mark.parametrize("ranges", [[(10, 14)], [(10, 11), (150, 153)]])
def test_a_dataset_of_a_mixture_has_epochs_of_its_own(ranges: list[tuple[int, int]]) -> None:
    orders = [Order([size], seed=1, streams=2, window=2) for size in (9, 20, 31)]
    mixture = Mixture([segment(0, [0.5, 0.3, 0.2]), segment(90, [0.1, 0.3, 0.6])], block=32)
    datasets, own = mixture.locate(np.arange(400))
    every = [
        (number, *(int(one[0]) for one in orders[number].locate([at])))
        for number, at in zip(datasets.tolist(), own.tolist(), strict=True)
    ]
    skipped = SkippedRanges(ranges)
    check(MixedSkips(skipped, orders, mixture), kept(skipped, every), 350)


def test_some_sample_has_to_be_left() -> None:
    order = Order([4, 3])
    skips = RecurringSkips(SkippedRanges([(0, 6)]), order)
    assert [skips.of_epoch(epoch).size for epoch in range(4)] == [6, 6, 6, 6]
    assert (skips.kept_at(np.arange(4)) // order.samples).tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="none would be left"):
        RecurringSkips(SkippedRanges([(0, 7)]), order)
    with pytest.raises(ValueError, match='tail="drop" would drop every sample: an epoch has 1'):
        step_at(7, 2, order.samples, "drop", skips)


def test_a_dataset_of_a_mixture_ends_if_all_its_samples_are_left_out() -> None:
    orders = [Order([size], seed=1) for size in (6, 20, 31)]
    mixture = Mixture([segment(0, [0.5, 0.3, 0.2]), segment(200, [0.7, 0.3, 0])], block=32)
    datasets, own = mixture.locate(np.arange(600))
    every = [
        (number, *(int(one[0]) for one in orders[number].locate([at])))
        for number, at in zip(datasets.tolist(), own.tolist(), strict=True)
    ]
    skipped = SkippedRanges([(20, 44)])  # twelve of the first one
    skips = MixedSkips(skipped, orders, mixture)
    assert skips.ended == [0]
    due = kept(skipped, every)
    assert all(datasets[at] for at in due if at >= 44)
    check(skips, due, 550)


def test_a_segment_of_ended_datasets_alone_is_passed() -> None:
    orders = [Order([6], seed=1), Order([20], seed=1)]
    skipped = SkippedRanges([(0, 64)])  # each of the first one
    alone, both = segment(10**5, [1, 0]), segment(0, [0.9, 0.1])
    skips = MixedSkips(skipped, orders, Mixture([both, alone, segment(2 * 10**5, [0.5, 0.5])]))
    assert skips.ended == [0]
    last = skips.kept_before(10**5)
    assert skips.kept_before(2 * 10**5) == last
    assert all(at >= 2 * 10**5 for at in skips.kept_at(np.arange(last, last + 8)).tolist())
    with pytest.raises(ValueError, match="a weight from position 100000 on, and none"):
        MixedSkips(skipped, orders, Mixture([both, alone]))


@settings(max_examples=times(15), deadline=None)
@given(COUNTS, RANGES, st.integers(1, 3), st.integers(0, 9))
def test_they_are_so_in_the_epochs_of_a_dataset_that_has_grown(
    counts: list[int], skipped: SkippedRanges, epochs: int, seed: int
) -> None:
    counts = [20, *counts]
    before = Order(counts[:-1], seed=seed, streams=3, window=2)
    newest = Order(counts, seed=seed, streams=3, window=2)
    versions = [
        DatasetVersion(0, 0, len(counts) - 1, ""),
        DatasetVersion(epochs * before.samples, epochs, len(counts), ""),
    ]
    order = GrownOrder(newest, versions)
    shards, samples = order.locate(np.arange(70 + 8 * newest.samples))
    every = list(zip(shards.tolist(), samples.tolist(), strict=True))
    check(RecurringSkips(skipped, order), kept(skipped, every), 70 + 4 * newest.samples)


class CountingOrder(Order):
    """Counts how often positions of samples are searched, which takes time with many shards."""

    searches = 0

    def positions_in(self, epoch: int, shards: Ints, samples: Ints) -> Ints:
        self.searches += 1
        return super().positions_in(epoch, shards, samples)


def test_many_ranges_and_epochs_are_searched_once_for_each_epoch_that_is_read() -> None:
    order = CountingOrder([40] * 50, seed=2, streams=6, window=2)
    skips = RecurringSkips(SkippedRanges((at, at + 2) for at in range(0, 40_000, 50)), order)
    assert order.searches == 0
    end = order.epoch_begin(1000)
    left = order.samples - skips.of_epoch(999).size
    assert skips.kept_before(end) - skips.kept_before(end - order.samples) == left
    assert order.searches == 1
    step = step_at(end, 64, order.samples, skipped=skips)
    assert skips.kept_before(step.after) - skips.kept_before(end) == 64
    assert order.searches == 2


def test_a_long_range_of_a_mixture_is_a_range_of_each_dataset() -> None:
    orders = [Order([10**9]), Order([10**9])]
    mixture = Mixture([segment(0, [0.75, 0.25])])
    first, end = 4 * mixture.block, 40 * mixture.block
    skips = MixedSkips(SkippedRanges([(first, end)]), orders, mixture)
    assert skips.consumed(end + first).tolist() == [first * 3 // 2, first // 2]
    assert skips.later(first, 0) == end
