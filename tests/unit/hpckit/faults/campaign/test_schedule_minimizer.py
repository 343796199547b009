"""Fewer faults that fail as well."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hpckit.faults.campaign.schedule_minimizer import minimise


@given(st.integers(1, 40), st.data())
def test_what_is_left_fails_and_needs_all_of_it(size: int, data: st.DataObject) -> None:
    culprits = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=3))

    def fails(part: Sequence[int]) -> bool:
        return culprits <= set(part)

    assert minimise(range(size), fails, 10_000) == sorted(culprits)


@given(st.integers(1, 40), st.integers(0, 12))
def test_tries_are_counted_and_what_is_left_fails(size: int, tries: int) -> None:
    tried = []

    def fails(part: Sequence[int]) -> bool:
        tried.append(part)
        return size - 1 in part

    left = minimise(range(size), fails, tries)
    assert len(tried) <= tries
    assert size - 1 in left
