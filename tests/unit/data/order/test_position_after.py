"""Going many steps ahead at once is as going one by one."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.order.rank_shares import Tail, position_after, step_at


@given(
    position=st.integers(0, 500),
    steps=st.integers(0, 60),
    size=st.integers(1, 40),
    samples=st.integers(1, 90),
    tail=st.sampled_from(get_args(Tail)),
)
def test_many_steps_are_as_one_by_one(
    position: int, steps: int, size: int, samples: int, tail: Tail
) -> None:
    if tail == "drop" and samples < size:
        return
    at = position
    for _ in range(steps):
        at = step_at(at, size, samples, tail).after
    ahead = position_after(position, steps, size, samples, tail)
    step, other = (step_at(p, size, samples, tail) for p in (at, ahead))
    assert step.positions.tolist() == other.positions.tolist()
    assert step.after == other.after


def test_no_step_backwards() -> None:
    with pytest.raises(ValueError, match="negative"):
        position_after(0, -1, 1, 1, "straddle")
