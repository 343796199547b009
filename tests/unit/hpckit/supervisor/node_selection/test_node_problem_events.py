"""What is told of nodes that are left out."""

from __future__ import annotations

from pathlib import Path

from hpckit.events.event_log import EventLog, read_events
from hpckit.slurm.allocation import Allocation
from hpckit.slurm.node_exclusion import excludable_nodes
from hpckit.supervisor.node_selection.node_problem_events import NodeProblemReporter

JOB = Allocation("1", ("n1", "n2", "n3"))


def test_each_problem_of_a_node_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with EventLog(path) as log:
        reporter = NodeProblemReporter(JOB, log)
        assert reporter.report_unhealthy(1, {}) == ()
        assert reporter.report_unhealthy(1, {2: ["disk", "clock"], 0: ["disk"]}) == (
            "n1 (disk)",
            "n3 (disk; and 1 more)",
        )
        assert reporter.report_unhealthy(2, {2: ["disk"]}) == ("n3 (disk)",)
        reporter.report_unhealthy(2, {2: ["mount"]})
        reporter.report_lost(2, [1])
        reporter.report_lost(3, [1])
    events = read_events(path)
    found = [(e["generation"], e["host"], e["problems"]) for e in events if "problems" in e.fields]
    assert found == [
        (1, "n1", ["disk"]),
        (1, "n3", ["disk", "clock"]),
        (2, "n3", ["mount"]),
    ]
    bad = excludable_nodes(events, events[-1].time)
    assert [(one.host, one.is_unhealthy) for one in bad] == [
        ("n1", True),
        ("n2", False),
        ("n3", True),
    ]


def test_the_nodes_that_one_machine_plays_are_one(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with EventLog(path) as log:
        reporter = NodeProblemReporter(None, log)
        assert reporter.report_unhealthy(1, {0: ["disk"], 1: ["disk"]}) == ("this machine (disk)",)
        reporter.report_lost(1, [0, 0])
    events = read_events(path)
    assert [event["admin"] for event in events] == [None, None]
    assert excludable_nodes(events, events[-1].time) == ()


def test_a_node_that_no_agent_came_on_is_told_once_with_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with EventLog(path) as log:
        reporter = NodeProblemReporter(JOB, log)
        reporter.report_absent(1, {1: "srun: error: no", 0: None})
        reporter.report_absent(2, {1: "srun: error: no"})
        assert (reporter.name(1), NodeProblemReporter(None, log).name(1)) == (
            "node 1 (n2)",
            "node 1",
        )
        NodeProblemReporter(None, log).report_absent(1, {1: "no"})
    events = read_events(path)
    assert [(e["generation"], e["host"]) for e in events] == [(1, "n1"), (1, "n2")]
    bad = excludable_nodes(events, events[-1].time)
    assert [(one.host, one.problem) for one in bad] == [
        ("n1", "no agent started, for an unknown reason"),
        ("n2", "no agent started: srun: error: no"),
    ]
