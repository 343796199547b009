"""What is told of nodes that are left out."""

from __future__ import annotations

from pathlib import Path

from hpckit.launch.allocation import Allocation
from hpckit.launch.fitness import Fitness
from hpckit.run.badhosts import bad_hosts
from hpckit.run.events import EventLog, read_events

JOB = Allocation("1", ("n1", "n2", "n3"))


def test_each_problem_of_a_node_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with EventLog(path) as log:
        fitness = Fitness(JOB, log)
        assert fitness.tell(1, {}) == ()
        assert fitness.tell(1, {2: ["disk", "clock"], 0: ["disk"]}) == (
            "n1 (disk)",
            "n3 (disk; and 1 more)",
        )
        assert fitness.tell(2, {2: ["disk"]}) == ("n3 (disk)",)
        fitness.tell(2, {2: ["mount"]})
        fitness.tell_lost(2, [1])
        fitness.tell_lost(3, [1])
    events = read_events(path)
    found = [(e["generation"], e["host"], e["problems"]) for e in events if "problems" in e.fields]
    assert found == [
        (1, "n1", ["disk"]),
        (1, "n3", ["disk", "clock"]),
        (2, "n3", ["mount"]),
    ]
    bad = bad_hosts(events, events[-1].time)
    assert [(one.host, one.is_unhealthy) for one in bad] == [
        ("n1", True),
        ("n2", False),
        ("n3", True),
    ]


def test_the_nodes_that_one_machine_plays_are_one(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with EventLog(path) as log:
        fitness = Fitness(None, log)
        assert fitness.tell(1, {0: ["disk"], 1: ["disk"]}) == ("this machine (disk)",)
        fitness.tell_lost(1, [0, 0])
    events = read_events(path)
    assert [event["admin"] for event in events] == [None, None]
    assert bad_hosts(events, events[-1].time) == ()
