"""The shares of a step: contiguous, disjoint, complete, even."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.placement import share


@given(first=st.integers(0, 2**62), size=st.integers(0, 5000), world=st.integers(1, 300))
def test_shares_tile_the_step(first: int, size: int, world: int) -> None:
    shares = [share(first, size, rank, world) for rank in range(world)]
    assert [p for positions in shares for p in positions] == list(range(first, first + size))
    lengths = {len(positions) for positions in shares}
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0)])
def test_an_impossible_rank_is_refused(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match="no share"):
        share(0, 8, rank, world)
