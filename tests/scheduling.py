"""Which worker of xdist runs which tests, and in which order, so that all are busy to the end.

A scope is a set of tests that one worker runs. Usually it is a file, whose tests share what takes
long to make. The scopes that take longest begin first. Those that wait most of their time, as on
clusters, leave the processors to the others from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

MARKERS = ("unit", "integration", "cluster", "faults")
"""A test has the one that its folder in tests/ is named after; elsewhere it is `integration`."""

LONGEST = (
    "other clusters",
    "clusters",
    "tests/trainers/test_trainers.py",
    "tests/faults/test_store_nfs.py 3",
    "tests/faults/test_store_nfs.py 4.2",
    "tests/integration/faults/test_campaign.py",
    "tests/integration/faults/test_bucket_campaign.py",
    "tests/integration/trainer/test_parallel_model.py*",
    "tests/integration/trainer/test_resized_worlds.py*",
    "tests/integration/run/*",
    "tests/integration/cli/*",
    "tests/integration/*",
    "tests/faults/*",
)
"""Patterns of scopes, the longest first; the scopes of one pattern are in the order of files."""

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


def next_scope(waiting: Sequence[str]) -> str:
    """The scope that begins next: of those that wait, the first one that takes longest."""
    return min(waiting, key=_rank)


@cache
def _rank(scope: str) -> int:
    ranks = (number for number, pattern in enumerate(LONGEST) if fnmatchcase(scope, pattern))
    return next(ranks, len(LONGEST))


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]
    """A scheduler of xdist that gives a worker the longest scope that waits."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(next_scope(list(self.workqueue)), last=False)
        super()._assign_work_unit(node)

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
