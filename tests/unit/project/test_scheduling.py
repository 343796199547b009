"""Markers and the order of the suite: by folder and file, and long ones first."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import PurePath
from typing import Any

import pytest

from tests.changed import CHECKOUT
from tests.scheduling import (
    COMPUTING,
    COMPUTING_WORKERS,
    WAITING,
    LongestFirst,
    marker_of,
    next_scope,
    scope_of,
)

NFS = "tests/faults/test_store_nfs.py"


@pytest.mark.parametrize(
    ("file", "marker"),
    [
        ("tests/unit/data/test_a.py", "unit"),
        ("tests/integration/faults/test_a.py", "integration"),
        ("tests/cluster/test_a.py", "cluster"),
        ("tests/faults/test_a.py", "faults"),
        ("tests/trainers/test_trainers.py", "integration"),
        ("tests/unit.py", "integration"),
    ],
)
def test_a_test_has_the_marker_of_its_folder(file: str, marker: str) -> None:
    assert marker_of(PurePath(file)) == marker


def test_this_test_has_its_marker(request: pytest.FixtureRequest) -> None:
    markers = {mark.name for mark in request.node.iter_markers()}
    assert markers & {"unit", "integration", "cluster", "faults"} == {"unit"}


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/unit/data/test_a.py::test_b[c]", "tests/unit/data/test_a.py"),
        ("tests/unit/data/test_a.py::TestC::test_b", "tests/unit/data/test_a.py"),
        ("tests/cluster/test_campaign.py::test_b", "clusters"),
        ("tests/cluster/test_runs.py::test_b", "other clusters"),
        (f"{NFS}::test_b[3]", f"{NFS} 3"),
        (f"{NFS}::test_b[4.2-quota]", f"{NFS} 4.2"),
    ],
)
def test_tests_that_share_what_takes_long_are_in_one_scope(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope


def test_what_takes_longest_begins_first_and_the_rest_in_its_order() -> None:
    left = ["tests/unit/b.py", "tests/unit/a.py", "tests/integration/data/c.py", "clusters"]
    begun = []
    while left:
        begun.append(next_scope(left, ["tests/unit/d.py"] * COMPUTING_WORKERS))
        left.remove(begun[-1])
    assert begun == [
        *("clusters", "tests/integration/data/c.py"),
        *("tests/unit/b.py", "tests/unit/a.py"),
    ]


def test_a_few_workers_have_scopes_that_compute_while_there_are_others() -> None:
    left = ["tests/integration/run/test_a.py", "tests/trainers/test_trainers.py"]
    of_others = ["clusters", *["tests/unit/d.py"] * COMPUTING_WORKERS]
    assert next_scope(left, of_others) == left[0]
    assert next_scope(left, of_others[:-1]) == left[1]
    assert next_scope(left[:1], of_others[:-1]) == left[0]


class Node:
    """A worker that notes what it is given."""

    shutting_down = False

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers


def test_a_worker_is_given_the_tests_of_its_scope_by_their_numbers() -> None:
    node: Any = Node()
    scheduler = LongestFirst.__new__(LongestFirst)
    scheduler.collection = ["a.py::x", "b.py::y", "a.py::z"]
    scheduler.assigned_work = {node: {}}
    scheduler.workqueue = OrderedDict({"a.py": {"a.py::x": True, "a.py::z": False}})
    scheduler._assign_work_unit(node)
    assert node.given == [2]
    assert scheduler.assigned_work == {node: {"a.py": {"a.py::x": True, "a.py::z": False}}}


class LeavingNode:
    """A worker that is given nothing more."""

    shutting_down = True


def test_a_scope_is_forgotten_when_all_its_tests_are_complete() -> None:
    tests = ["a.py::x", "a.py::y", "b.py::z"]
    node: Any = LeavingNode()
    scheduler = LongestFirst.__new__(LongestFirst)
    scheduler.registered_collections = {node: tests}
    of_a, of_b = dict.fromkeys(tests[:2], False), {tests[2]: False}
    scheduler.assigned_work = {node: {"a.py": of_a, "b.py": of_b}}
    scheduler.mark_test_complete(node, 1)
    assert scheduler.assigned_work[node].keys() == {"a.py", "b.py"}
    scheduler.mark_test_complete(node, 0)
    assert scheduler.assigned_work[node] == {"b.py": {"b.py::z": False}}


def test_scopes_that_take_longest_are_those_of_files_that_exist() -> None:
    for pattern in (*WAITING, *COMPUTING):
        if pattern.startswith("tests/"):
            assert any(CHECKOUT.glob(pattern.partition(" ")[0].rstrip("*") + "*")), pattern
