"""What a loader says about where its time goes."""

from __future__ import annotations

from typing import Any

import pytest

from data.read.loader_metrics import Usage


def past(**fields: Any) -> Usage:
    """Of a loader whose samples came mostly past the cache."""
    waits: dict[str, Any] = {
        "elapsed_s": 10,
        "wait_s": 5,
        "read_s": 6,
        "download_s": 5,
        "past_s": 4,
    }
    return Usage(9, **{**waits, **fields})


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (Usage(batches=9, elapsed_s=10, wait_s=0.2), "the loader keeps up: 2% of the time"),
        (Usage(batches=1, elapsed_s=3, wait_s=3), "the first batch took 3.0 s"),
        (Usage(9, elapsed_s=10, wait_s=5, read_s=6, download_s=5), "waiting for downloads: 50%"),
        (
            past(no_room=1),
            "waiting for downloads: 50% of the time waiting for data;"
            " most of the data bypasses the cache, which is too small",
        ),
        (
            past(no_room=1, disk_errors=1),
            "waiting for downloads: 50% of the time waiting for data;"
            " most of the data bypasses the cache, whose disk fails",
        ),
        (past(uncached=1), "waiting for downloads: 50% of the time waiting for data; there is no"),
        (
            past(past_s=1, no_room=1),
            "waiting for downloads: 50% of the time waiting for data; warm",
        ),
        (Usage(9, elapsed_s=10, wait_s=5, read_s=6, download_s=1), "waiting for reads: 50%"),
        (Usage(9, elapsed_s=10, wait_s=5, transform_s=6, read_s=1), "decode-bound: 50%"),
    ],
)
def test_the_diagnosis(usage: Usage, told: str) -> None:
    assert usage.diagnosis().startswith(told)


def test_two_looks_are_a_span() -> None:
    early, late = Usage(batches=2, wait_s=1.0, ready=1), Usage(batches=5, wait_s=1.5, ready=3)
    assert late - early == Usage(batches=3, wait_s=0.5, ready=3)
