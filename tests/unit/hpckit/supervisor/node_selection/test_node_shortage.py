"""Too few nodes for a generation: whether their job is worth another try, and who is to blame."""

from __future__ import annotations

import pytest

from hpckit.supervisor.node_selection.node_shortage import (
    NodeShortage,
    blamed,
    is_job_spent,
    shortage_of,
)

LOST, UNHEALTHY, ABSENT = NodeShortage.LOST, NodeShortage.UNHEALTHY, NodeShortage.ABSENT


@pytest.mark.parametrize(
    ("took_part", "unhealthy", "found"),
    [
        ((), (), ABSENT),
        ((0, 1), (), LOST),
        ((), ("n2 (no GPU)",), UNHEALTHY),
        ((0, 1), ("n2 (no GPU)",), UNHEALTHY),
    ],
)
def test_what_it_lacks(
    took_part: tuple[int, ...], unhealthy: tuple[str, ...], found: NodeShortage
) -> None:
    assert shortage_of(took_part, unhealthy) is found


@pytest.mark.parametrize(
    ("in_a_row", "is_spent"),
    [
        ([], False),
        ([LOST], True),
        ([UNHEALTHY], True),
        ([ABSENT], False),
        ([ABSENT, ABSENT], True),
        ([ABSENT, UNHEALTHY], True),
    ],
)
def test_a_job_is_spent(in_a_row: list[NodeShortage], is_spent: bool) -> None:
    assert is_job_spent(in_a_row) is is_spent


@pytest.mark.parametrize(
    ("absent", "count", "nodes"),
    [({1: None}, 4, [1]), ({3: None, 1: None}, 4, [1, 3]), ({0, 1}, 2, []), ({0}, 1, [0])],
)
def test_nodes_are_blamed_where_agents_came_on_others(
    absent: set[int], count: int, nodes: list[int]
) -> None:
    assert blamed(absent, count) == nodes
