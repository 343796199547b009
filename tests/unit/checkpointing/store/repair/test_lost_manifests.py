"""What is taken for lost and not for pruned, of checkpoints that only another store has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.store.repair.lost_manifests import is_left

PACKS = st.frozensets(st.sampled_from([bytes([i]) * 16 for i in range(5)]))


@pytest.mark.parametrize(
    ("packs", "there", "needed", "left"),
    [
        ("ab", "abc", "abc", True),  # all of it is here, if only because others need it
        ("ab", "abc", "c", True),
        ("ab", "a", "", True),  # half of it was lost, and nobody pruned the other half
        ("ab", "a", "a", False),
        ("ab", "", "", False),
        ("", "", "", True),  # it has values alone
    ],
)
def test_what_is_left(packs: str, there: str, needed: str, left: bool) -> None:
    a, b, c = ({letter.encode() for letter in letters} for letters in (packs, there, needed))
    assert is_left(a, b, c) is left


@given(PACKS, PACKS, PACKS)
def test_what_is_pruned_is_never_taken_for_lost(
    packs: frozenset[bytes], there: frozenset[bytes], needed: frozenset[bytes]
) -> None:
    swept = there - (packs - needed)  # a prune of it deletes what it alone needs
    if packs - needed:
        assert not is_left(packs, swept, needed)
