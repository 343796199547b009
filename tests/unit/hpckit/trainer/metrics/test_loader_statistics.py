"""What is told of the data of all ranks: sums, and a word when it matters."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

from data import Loader, Usage, open_dataset, pack_folder
from hpckit.trainer.metrics.loader_statistics import (
    LONG_S,
    NAMES,
    LoaderDiagnosis,
    LoaderStatistics,
    record_of,
    usage_of,
)
from hpckit.trainer.metrics.step_metrics import RESERVED


def sums(**fields: float) -> list[float]:
    """Of all ranks together, without counts of stores."""
    return [*map(float, astuple(Usage(**fields))), *[0.0] * 6]  # type: ignore[arg-type]


WELL = sums(batches=10, wait_s=0.1, elapsed_s=10.0)
SLOW = sums(batches=10, wait_s=5.0, elapsed_s=10.0, read_s=9.0, download_s=8.0)


def test_a_record_has_the_sums_of_all_ranks() -> None:
    taken = [
        *sums(batches=8, bytes=600, wait_s=1.0, elapsed_s=4.0, ready=6)[:-6],
        5,
        2,
        1,
        300,
        100,
        1,
    ]
    record = record_of(taken, world=4, seconds=2.0)
    assert record == {
        "data_wait_share": 0.25,
        "data_bytes_per_s": 300.0,
        "data_batches_ready": 1.5,
        "data_errors": 0.0,
        "data_hits": 5,
        "data_misses": 2,
        "data_bypasses": 1,
        "data_fetched_bytes_per_s": 150.0,
        "data_peer_bytes_per_s": 50.0,
        "data_peer_failures": 1,
    }
    assert set(record) == NAMES
    assert NAMES <= RESERVED
    assert usage_of(taken).batches == 8


def test_a_word_when_it_changes_and_not_for_a_moment() -> None:
    told = LoaderDiagnosis()
    assert told.update(WELL, LONG_S) is None
    assert told.update(SLOW, LONG_S / 2) is None, "too short to judge"
    first = told.update(SLOW, LONG_S / 2)
    assert first is not None
    assert first["bound"] == "download"
    assert first["diagnosis"].startswith("waiting for downloads: 50% of the time")
    assert told.update(SLOW, LONG_S) is None, "told already"
    again = told.update(WELL, LONG_S)
    assert again is not None
    assert again["bound"] == "consumer"
    assert told.update(sums(batches=1, wait_s=1.0, elapsed_s=10.0), LONG_S) is None, "a start"


def test_what_was_taken_is_counted_from_one_look_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "0.txt").write_text("text")
    pack_folder(tmp_path / "texts", tmp_path / "shards")
    loader = Loader(open_dataset(str(tmp_path / "shards")), global_batch=2)
    intake, batches = LoaderStatistics(loader), iter(loader)
    for count in (3, 2, 0):
        for _ in range(count):
            next(batches)
        taken = usage_of(intake.take())
        assert (taken.batches, taken.samples) == (count, 2 * count)
        assert taken.ready >= 0, "that of now, and no difference"
    loader.close()
