"""Which worker of xdist runs which tests, and in which order, so that all processors are busy to
the end.

A scope is a set of tests that one worker runs. Usually it is a file, whose tests share what takes
long to make. Tests on clusters, and those of runs, wait most of their time, whereas others compute.
As long as there are both, a few workers have scopes that compute, and all others have scopes that
wait, of which those that take longest begin first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

MARKERS = ("unit", "integration", "cluster", "faults")
"""A test has the one that its folder in tests/ is named after; elsewhere it is `integration`."""

WAITING = (
    "other clusters",
    "clusters",
    "tests/integration/faults/test_campaign.py",
    "tests/integration/faults/test_bucket_campaign.py",
    "tests/integration/run/*",
    "tests/integration/examples/*",
    "tests/integration/cli/*",
    "tests/integration/project/*",
    "tests/integration/service/*",
    "tests/faults/test_service_store_faults.py",
    "tests/faults/test_store_crash.py",
    "tests/faults/test_store_schedules.py",
    "tests/faults/test_hangs.py",
    "tests/integration/trainer/test_collective_timing.py",
    "tests/integration/trainer/test_step_metrics.py",
)
"""Patterns of scopes that leave the processors to others for much of their time, the longest first;
the scopes of one pattern are in the order of files."""

COMPUTING = (
    "tests/trainers/test_trainers.py",
    "tests/faults/test_store_nfs.py 3",
    "tests/faults/test_store_nfs.py 4.2",
    "tests/integration/trainer/test_parallel_model.py*",
    "tests/integration/trainer/test_resized_worlds.py*",
    "tests/integration/*",
    "tests/faults/*",
)
"""Patterns of the others, as above; what is in neither comes after them."""

COMPUTING_WORKERS = 1
"""How many workers have scopes that compute while there are others."""

_SHARED = {"tests/cluster/test_[a-e]*": "clusters", "tests/cluster/test_[f-z]*": "other clusters"}
"""Scopes of several files, whose tests share a cluster."""
_BY_VERSION = "tests/faults/test_store_nfs.py"
"""A file that starts a machine for each version of NFS, which is a parameter of its tests."""
_ALONE = ("tests/integration/trainer/test_parallel_model.py",)
"""Files of long tests that share nothing."""


def marker_of(path: PurePath) -> str:
    """The marker of a test in this file, whose path is relative to the checkout."""
    return next((part for part in path.parts[1:2] if part in MARKERS), "integration")


def scope_of(nodeid: str) -> str:
    """The scope of a test."""
    file = nodeid.partition("::")[0]
    if file == _BY_VERSION:
        return f"{file} {'4.2' if '4.2' in nodeid else '3'}"
    if file in _ALONE:
        return nodeid
    return next((scope for files, scope in _SHARED.items() if fnmatchcase(file, files)), file)


def next_scope(left: Collection[str], of_others: Iterable[str]) -> str:
    """The scope that a worker has next: of those that are left, the first one that takes longest.

    Args:
        of_others: scopes that other workers have.
    """
    computing = sum(not leaves_processors(scope) for scope in of_others)
    wanted = computing >= COMPUTING_WORKERS
    return min(left, key=lambda scope: (leaves_processors(scope) != wanted, _rank(scope)))


@cache
def leaves_processors(scope: str) -> bool:
    """Whether the tests of a scope wait for much of their time."""
    return any(fnmatchcase(scope, pattern) for pattern in WAITING)


@cache
def _rank(scope: str) -> int:
    patterns = (*WAITING, *COMPUTING)
    ranks = (number for number, pattern in enumerate(patterns) if fnmatchcase(scope, pattern))
    return next(ranks, len(patterns))


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]
    """A scheduler of xdist that gives a worker the longest scope that waits."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker a scope. The scheduler of xdist would look for each test in the list of
        all, which takes seconds."""
        assigned = self.assigned_work.items()
        of_others = [scope for other, work in assigned if other != node for scope in work]
        scope = next_scope(self.workqueue, of_others)
        work = self.assigned_work[node][scope] = self.workqueue.pop(scope)
        node.send_runtest_some(
            [self._numbers[test] for test, is_over in work.items() if not is_over]
        )

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Of each test, its place in the list of all, which is the same for all workers."""
        return {test: number for number, test in enumerate(self.collection)}

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Note that a test is complete, and forget scopes that are: all tests that a worker has
        ever been given would be counted at each report."""
        super().mark_test_complete(node, item_index, duration)
        work = self.assigned_work[node]
        scope = scope_of(self.registered_collections[node][item_index])
        if all(work[scope].values()):
            del work[scope]
