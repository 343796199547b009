"""When the nodes of a job are measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpckit.events.schema import Event, event_of
from hpckit.supervisor.node_selection.deep_health_schedule import measuring_reasons
from tests.unit.hpckit.specs_and_processes import make_spec
from tests.unit.hpckit.trainer.deep_health.test_health_figures import LIMITS

NOW = 100 * 3600.0
BAD = (
    "deep_health_problem",
    {
        **{"host": "b", "device": "cpu", "measure": "memory", "value": 1.0, "median": 2.0},
        **{"is_excluded": True, "what": "slow"},
    },
)
HANG = ("hang", {"step": 3, "phase": "step", "local_ranks": [0], "stacks": []})


def measured(*hosts: str, complete: bool = True) -> tuple[str, dict[str, object]]:
    record = {"reasons": [], "found": [], "is_complete": complete, "seconds": 1.0}
    return "deep_health", {"hosts": list(hosts), **record}


def reasons(*events: tuple[str, dict[str, object]], age_h: float = 1.0, **changes: bool) -> str:
    found: list[Event] = [
        event_of(NOW - age_h * 3600 + n, kind, dict(fields))
        for n, (kind, fields) in enumerate(events)
    ]
    deep = replace(LIMITS, **changes)
    return "; ".join(measuring_reasons(found, ["a", "b"], NOW, deep))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "2 nodes not measured before (a, b)"),
        ([measured("a")], "1 node not measured before (b)"),
        ([measured("a", "b")], ""),
        ([measured("a", "b", complete=False)], "2 nodes not measured before (a, b)"),
        ([BAD, measured("a", "b")], "1 node not measured before (b)"),
        ([BAD, measured("a", "b"), measured("a", "b")], ""),
        ([measured("a", "b"), HANG, HANG], "ranks hung"),
        ([HANG, measured("a", "b")], ""),
        ([measured("a", "b"), ("node_lost", {"host": "b"})], "node b was lost"),
        (
            [
                measured("a", "b"),
                ("straggler", {"host": "a", "rank": 1, "step": 3, "z": 9.0, "excess": 2.0}),
            ],
            "a rank on a was a straggler",
        ),
        ([measured("a", "b"), ("not_finite", {"step": 3, "what": "loss"})], "a value was not fin"),
    ],
)
def test_nodes_are_measured_when_new_or_suspected(
    events: list[tuple[str, dict[str, object]]], words: str
) -> None:
    found = reasons(*events)
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_a_result_holds_for_a_while() -> None:
    assert reasons(measured("a", "b"), age_h=25.0) != ""
    assert reasons(measured("a", "b"), age_h=23.0) == ""


def test_each_occasion_can_be_left_out() -> None:
    assert reasons(first=False) == ""
    assert reasons(measured("a", "b"), HANG, after_suspicion=False) == ""


def test_a_run_without_it_measures_nothing() -> None:
    assert make_spec().health.deep is None
