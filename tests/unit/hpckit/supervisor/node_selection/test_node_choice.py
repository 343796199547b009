"""Which nodes take part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.supervisor.node_selection.node_choice import NodeRequirement, choose_nodes


def any_number(count: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("there", "before", "wanted", "fewest", "chosen"),
    [
        ([0, 1, 2], (), 2, 2, (0, 1)),
        ([0, 2], (0, 1), 2, 2, (0, 2)),  # a spare takes the lost one's place
        ([0, 1, 2], (0, 2), 2, 2, (0, 2)),  # and keeps it when the other is back
        ([0], (0, 1), 2, 2, ()),
        ([0], (0, 1), 2, 1, (0,)),
        ([1, 0], (0,), 2, 1, (0, 1)),  # it grows again
        ([], (0,), 2, 1, ()),
    ],
)
def test_who_takes_part(
    there: list[int], before: tuple[int, ...], wanted: int, fewest: int, chosen: tuple[int, ...]
) -> None:
    assert choose_nodes(there, before, NodeRequirement(wanted, fewest, any_number)) == chosen


def test_only_as_many_as_can_share_the_work() -> None:
    need = NodeRequirement(4, 1, lambda count: 8 % count == 0)
    assert choose_nodes([0, 1, 2], (), need) == (0, 1)
    assert choose_nodes([0, 1, 2], (1, 2), need) == (1, 2)
    assert choose_nodes([0, 1, 2], (), NodeRequirement(4, 3, need.fits)) == ()


@given(st.sets(st.integers(0, 9)), st.lists(st.integers(0, 9)), st.integers(1, 9), st.data())
def test_never_more_than_wanted_nor_fewer_than_allowed(
    there: set[int], before: list[int], wanted: int, data: st.DataObject
) -> None:
    fewest = data.draw(st.integers(1, wanted))
    chosen = choose_nodes(there, before, NodeRequirement(wanted, fewest, any_number))
    assert set(chosen) <= there
    assert len(chosen) == (min(wanted, len(there)) if len(there) >= fewest else 0)
    kept = set(before) & there
    assert kept <= set(chosen) or set(chosen) <= kept or not chosen
