"""Invariants 1, 4 and 5 under schedules by chance: in memory, on a disk and in S3."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest

from checkpointing.store import sweep
from tests.effort import times
from tests.faults import schedules
from tests.faults.crashing import Place, opened
from tests.services.s3 import S3Place

COUNT = times(40)
ON_DISK, IN_S3 = COUNT // 8, COUNT // 15
SHORT_TTL_S = 10.0  # where the clock is the store's
_PARALLEL = 4
# of ten thousand, those that left a tomb: what it condemned was gone, and abandoned in its place
FOUND = (500316, 503113, 505148, 506877, 507541)


@pytest.fixture(scope="module", autouse=True)
def _leases() -> Iterator[None]:
    with schedules.leases_of(SHORT_TTL_S):
        yield


def test_nothing_is_lost_in_memory() -> None:
    with schedules.leases_of(schedules.TTL_S):
        _play_in_memory(range(COUNT))


def test_what_was_found_stays_mended() -> None:
    with schedules.leases_of(schedules.TTL_S):
        _play_in_memory(FOUND)


def test_nothing_is_lost_on_a_disk(tmp_path: Path) -> None:
    _play_all([Place(str(tmp_path / str(seed)), {}) for seed in range(ON_DISK)])


def test_nothing_is_lost_in_s3(s3_url: S3Place) -> None:
    _play_all([Place(f"{s3_url.url}/{seed}", s3_url.options) for seed in range(IN_S3)])


def test_a_sweep_that_forgets_what_is_needed_is_found_out() -> None:
    """Or the schedules would prove nothing."""
    with (
        schedules.leases_of(schedules.TTL_S),
        mock.patch.object(sweep, "live_packs", return_value=set()),
        pytest.raises(AssertionError),
    ):
        _play_in_memory(range(COUNT))


def _play_in_memory(seeds: Iterable[int]) -> None:
    for seed in seeds:
        schedules.play_in_memory(seed)


def _play_all(places: list[Place]) -> None:
    """Some at a time; at the end of all, the leases run out by the store's clock."""
    with ExitStack() as stack:
        storages = [stack.enter_context(opened(place)) for place in places]

        def one(seed: int) -> schedules.World:
            return schedules.play(storages[seed], seed, SHORT_TTL_S, lambda: None)

        with ThreadPoolExecutor(_PARALLEL) as pool:
            worlds = list(pool.map(one, range(len(places))))
            time.sleep(SHORT_TTL_S + 1)
            list(pool.map(schedules.World.check_end, worlds))
