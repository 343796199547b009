"""Whom a fault may hit."""

from __future__ import annotations

from hpckit.events.schema import event_of
from hpckit.faults.fault_plan import nodes_of


def test_spares_are_no_nodes_of_the_generation() -> None:
    events = [
        event_of(1.0, "nodes_chosen", {"generation": 1, "nodes": [0, 1]}),
        event_of(2.0, "nodes_chosen", {"generation": 2, "nodes": [1, 2]}),
    ]
    assert list(nodes_of(events, 1, 2)) == [0, 1]
    assert list(nodes_of(events, 2, 2)) == [1, 2]
    assert list(nodes_of(events, 3, 2)) == [0, 1], "it was not told: all that there are"
