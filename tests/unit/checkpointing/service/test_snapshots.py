"""What a node knows of the snapshots of its ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.service.snapshots import newest_common_step


@given(
    st.dictionaries(st.integers(0, 3), st.frozensets(st.integers(0, 5)), max_size=4),
    st.frozensets(st.integers(0, 3)),
)
def test_the_newest_common_step_is_had_by_all_ranks(
    held: dict[int, frozenset[int]], ranks: frozenset[int]
) -> None:
    found = newest_common_step(held, ranks)
    common = [s for s in range(6) if ranks and all(s in held.get(rank, ()) for rank in ranks)]
    assert found == (common[-1] if common else None)
