"""The number of steps of some epochs equals the number of those that come."""

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from data.order.rank_shares import Tail, count_steps, steps_from
from data.order.skipped_ranges import SkippedRanges


@given(
    samples=st.integers(1, 40),
    size=st.integers(1, 12),
    epochs=st.integers(1, 4),
    at=st.integers(0, 160),
    tail=st.sampled_from(get_args(Tail)),
    skips=st.lists(st.tuples(st.integers(0, 150), st.integers(1, 12)), max_size=3),
)
def test_as_many_are_counted_as_come(
    samples: int,
    size: int,
    epochs: int,
    at: int,
    tail: Tail,
    skips: list[tuple[int, int]],
) -> None:
    end = epochs * samples
    position = min(at, end)
    skipped = SkippedRanges([(first, first + length) for first, length in skips])
    if tail == "drop" and size > samples:
        return  # refused
    steps = list(steps_from(position, size, samples, tail, end, skipped))
    assert count_steps(position, end, size, samples, tail, skipped) == len(steps)
