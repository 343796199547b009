"""Invariants 1, 4 and 5 under schedules by chance: in memory, on a disk and in S3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from checkpointing.store.deletion import pack_sweep
from tests.effort import times
from tests.faults import schedules
from tests.faults.crashing import Place
from tests.services.s3 import S3Place

COUNT = times(40)
ON_DISK, IN_S3 = COUNT // 8, COUNT // 40
SHORT_TTL_S = 20.0  # where the clock is a server's; on a busy machine a renewal may be late
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
    places = {seed: Place(str(tmp_path / str(seed)), {}) for seed in range(ON_DISK)}
    with schedules.leases_of(schedules.TTL_S):
        assert schedules.play_all(places, schedules.TTL_S, "disk") == {}


def test_nothing_is_lost_in_s3(s3_url: S3Place) -> None:
    places = {seed: Place(f"{s3_url.url}/{seed}", s3_url.options) for seed in range(IN_S3)}
    assert schedules.play_all(places, SHORT_TTL_S, "s3") == {}


def test_a_sweep_that_forgets_what_is_needed_is_found_out() -> None:
    """Or the schedules would prove nothing."""
    with (
        schedules.leases_of(schedules.TTL_S),
        mock.patch.object(pack_sweep, "live_packs", return_value=set()),
        pytest.raises(AssertionError),
    ):
        _play_in_memory(range(COUNT))


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_command_says_which_schedules_fail(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--count", "2", "--seed", "7", "--where", where]
    assert schedules.main(asked) == 0
    assert capsys.readouterr().out == "2 schedules, 0 of them with a violation\n"
    monkeypatch.setattr(schedules.World, "check", _find_fault)
    assert schedules.main(asked) == 1
    said = capsys.readouterr().out.splitlines()
    assert {"seed 7: AssertionError: lost", "seed 8: AssertionError: lost"} < {*said}
    assert said[-1] == "2 schedules, 2 of them with a violation"


def _find_fault(world: schedules.World) -> None:
    raise AssertionError("lost")


def _play_in_memory(seeds: Iterable[int]) -> None:
    for seed in seeds:
        schedules.play_in_memory(seed)
