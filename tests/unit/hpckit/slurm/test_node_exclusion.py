"""Which nodes a run does without, by its events."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import pytest

from hpckit.events.event_log import Event
from hpckit.events.schema import event_of
from hpckit.slurm.node_exclusion import (
    AGE_S,
    ExcludableNode,
    PartitionNodes,
    choose_exclusions,
    drain_line,
    excludable_nodes,
    excluded_from,
)

NOW = 1e6


def at(ago_s: float, kind: str, **fields: Any) -> Event:
    return event_of(NOW - ago_s, kind, fields)


def unhealthy(ago_s: float, host: str | None, *problems: str) -> Event:
    return at(ago_s, "node_unhealthy", host=host, problems=list(problems or ("bad",)))


def lost(ago_s: float, host: str) -> Event:
    return at(ago_s, "node_lost", host=host)


def started(ago_s: float, job: str | None = None) -> Event:
    return at(ago_s, "run_started", **({"job": job} if job else {}))


def names(*events: Event) -> list[str]:
    return [one.host for one in excludable_nodes(events, NOW)]


def test_an_unhealthy_node_is_bad_for_a_day() -> None:
    first, recent = unhealthy(90, "n2", "disk", "clock"), unhealthy(50, "n1")
    found = excludable_nodes([started(100, "1"), first, recent], NOW)
    assert found == (
        ExcludableNode("n1", "bad", NOW - 50, True),
        ExcludableNode("n2", "disk; clock", NOW - 90, True),
    )
    assert names(started(2 * AGE_S, "1"), unhealthy(AGE_S + 1, "n1"), unhealthy(9, "n2")) == ["n2"]
    assert names(started(100), unhealthy(90, None)) == [], "no node of Slurm's"


def test_one_that_is_lost_twice_is_bad() -> None:
    begin = started(AGE_S * 3, "1")
    assert names(begin, lost(50, "n1"), lost(40, "n2")) == []
    (found,) = excludable_nodes([begin, lost(50, "n1"), lost(45, "n2"), lost(40, "n1")], NOW)
    assert found == ExcludableNode("n1", "its agent was lost 2 times", NOW - 40, False, 2)
    assert names(begin, lost(AGE_S + 5, "n1"), lost(40, "n1")) == []
    (both,) = excludable_nodes([begin, lost(50, "n1"), unhealthy(45, "n1"), lost(40, "n1")], NOW)
    assert both.is_unhealthy


def test_it_stays_bad_for_jobs_that_follow_and_not_for_a_person() -> None:
    first = [started(100, "1"), at(99, "successor_queued", job="2"), unhealthy(98, "n1")]
    follows = [started(90, "2"), at(89, "successor_queued", job="3")]
    assert names(*first, *follows, started(80, "3")) == ["n1"]
    assert names(*first, started(90, "1")) == ["n1"], "requeued"
    assert names(*first, *follows, started(80, "7")) == []
    assert names(*first, started(90)) == []


@pytest.mark.parametrize(
    ("usable", "away", "fewest", "excluded", "spared"),
    [
        ("abcdef", "", 2, "abcd", ""),
        ("abcde", "", 2, "abc", "d"),  # those that were only lost, first
        ("abcd", "", 2, "ab", "cd"),
        ("abc", "", 2, "bd", "ac"),  # those that were seen longer ago, next
        ("ab", "", 2, "cd", "ab"),
        ("xyz", "", 3, "abcd", ""),  # it could not have them anyway
        ("", "", 1, "abcd", ""),
        ("xyz", "abcd", 3, "abcd", ""),
        ("d", "abc", 2, "ab", "cd"),  # as slurmctld was started again, and knows one so far
        ("", "abcd", 2, "ab", "cd"),
        ("ax", "bcd", 2, "bcd", "a"),
    ],
)
def test_as_many_nodes_are_left_as_are_needed(
    usable: str, away: str, fewest: int, excluded: str, spared: str
) -> None:
    bad = [
        *(ExcludableNode("a", "", 10.0, True), ExcludableNode("b", "", 20.0, True)),
        *(ExcludableNode("c", "", 40.0, False), ExcludableNode("d", "", 30.0, False)),
    ]
    nodes = PartitionNodes(frozenset(usable), frozenset(away))
    assert choose_exclusions(bad, nodes, fewest) == (list(excluded), list(spared))


def test_slurm_is_asked_about_single_nodes_only_if_it_cannot_do_without_all() -> None:
    bad = [ExcludableNode(name, "", float(i), False) for i, name in enumerate("abc")]
    nodes, asked = PartitionNodes(frozenset("abcdef")), list[str]()

    def can_run(hosts: Sequence[str]) -> bool:
        asked.append("".join(hosts))
        return "b" not in hosts

    assert choose_exclusions(bad, nodes, 1, can_run) == (["a", "c"], ["b"])
    assert asked == ["abc", "c", "bc", "ac"]
    asked.clear()
    assert choose_exclusions([bad[0], bad[2]], nodes, 1, can_run) == (["a", "c"], [])
    assert asked == ["ac"]
    asked.clear()
    assert choose_exclusions(bad, PartitionNodes(frozenset("abc")), 3, can_run) == ([], list("abc"))
    assert asked == []


def test_the_nodes_of_a_job_are_those_of_the_last_event() -> None:
    out, more = (
        at(9 - i, "nodes_excluded", job="2", hosts=h) for i, h in enumerate((["a"], ["b"]))
    )
    back = at(5, "exclusion_withdrawn", job="2", hosts=["b"], reason="r")
    assert excluded_from([out], "2") == ("a",)
    assert excluded_from([out, more], "2") == ("b",)
    assert excluded_from([out, more, back], "2") == ()
    assert excluded_from([out], "3") == ()


def test_the_line_for_the_administrator_is_safe_to_paste() -> None:
    problem = 'it\'s; $(rm -rf /) \n`x` "y"'
    line = drain_line("n1", problem)
    reason = 'reason=hpckit: it\'s; $(rm -rf /) `x` "y"'
    assert shlex.split(line) == ["scontrol", "update", "nodename=n1", "state=drain", reason]
    assert "\n" not in line
