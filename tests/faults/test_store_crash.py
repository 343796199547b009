"""Invariants 1, 4 and 5: a save and a prune that are killed before and after every single change of
the store, in memory; before each on a disk, which is after the one before, and at some in S3."""

from __future__ import annotations

import os
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import NoReturn

import pytest

from checkpointing.storage.memory_storage import MemoryStorage
from tests.effort import every, some
from tests.faults import crashing
from tests.faults.crashing import Place, When, opened
from tests.services.crash_storage import CrashStorage
from tests.services.s3 import S3Place

TTL_S = 600.0  # of sessions that nothing waits for
SHORT_TTL_S = 20.0  # where the clock is a server's; on a busy machine a renewal may be late
MOMENTS: tuple[When, ...] = ("before", "after")
ON_DISK = some(MOMENTS[:1], MOMENTS[1:])
S3_EVERY = every(17)  # of the points, in S3


@pytest.fixture(scope="module")
def populated() -> MemoryStorage:
    """What every process finds."""
    storage = MemoryStorage("memory://crash-before")
    crashing.populate(storage)
    return storage


@pytest.fixture(scope="module")
def points(populated: MemoryStorage) -> int:
    """How many changes the doomed process makes."""
    storage = MemoryStorage("memory://crash-count")
    crashing.copied(populated, storage)
    changes = crashing.changes(storage)
    kinds = {change.partition("/")[0] for change in changes}
    # or the matrix would not be about what it is meant to be about
    assert {"put packs", "create runs", "create tombs", "put leases"} <= kinds
    assert {"delete packs", "delete runs", "delete tombs", "delete leases"} <= kinds
    return len(changes)


def test_killed_anywhere_in_memory(populated: MemoryStorage, points: int) -> None:
    for kill_at, when in product(range(points), MOMENTS):
        storage = MemoryStorage(f"memory://crash-{kill_at}-{when}")
        crashing.copied(populated, storage)
        with pytest.raises(SystemExit):
            crashing.work(CrashStorage(storage, kill_at, when, _exit), TTL_S)
        crashing.check_at_once(storage)
        crashing.age(storage, 2 * TTL_S)
        crashing.check_after_all(storage)


def test_killed_anywhere_on_a_disk(populated: MemoryStorage, points: int, tmp_path: Path) -> None:
    places = {
        (kill_at, when): Place(str(tmp_path / f"{kill_at}-{when}"), {})
        for kill_at, when in product(range(points), ON_DISK)
    }
    for place in places.values():
        with opened(place) as storage:
            crashing.copied(populated, storage)
    jobs = [partial(crashing.die_at, p, k, w, TTL_S) for (k, w), p in places.items()]
    assert set(crashing.run_to_death(jobs)) == {-9}
    for place in places.values():
        with opened(place) as storage:
            crashing.check_at_once(storage)
            for lease in Path(place.url, "leases").glob("*.lease"):
                long_ago = lease.stat().st_mtime - 2 * TTL_S
                os.utime(lease, (long_ago, long_ago))
            crashing.check_after_all(storage)


def test_killed_at_many_points_in_s3(
    populated: MemoryStorage, points: int, s3_url: S3Place
) -> None:
    every = list(product(range(points), MOMENTS))[::S3_EVERY]
    places = {
        (kill_at, when): Place(f"{s3_url.url}/{kill_at}-{when}", s3_url.options)
        for kill_at, when in every
    }
    for place in places.values():
        with opened(place) as storage:
            crashing.copied(populated, storage)
    jobs = [partial(crashing.die_at, p, k, w, SHORT_TTL_S) for (k, w), p in places.items()]
    assert set(crashing.run_to_death(jobs)) == {-9}
    for place in places.values():
        with opened(place) as storage:
            crashing.check_at_once(storage)
    time.sleep(SHORT_TTL_S + 1)  # the leases run out by the server's clock
    for place in places.values():
        with opened(place) as storage:
            crashing.check_after_all(storage)


def _exit() -> NoReturn:
    raise SystemExit(9)
