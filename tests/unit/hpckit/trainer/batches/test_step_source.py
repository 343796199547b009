"""The batches of steps, over epochs, and what is counted of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from hpckit.trainer.errors import TrainingError
from tests.unit.hpckit.trainer.batches.sources import Interrupted, source_of


def test_the_next_epoch_begins_where_one_ends_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        assert Interrupted(lambda: [1, 2, 3]).run(8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert [one.message for one in caplog.records] == [
        "the batches of list ended after step 3: the next epoch begins, and so on until train.steps"
    ]


@pytest.mark.parametrize("loader", [[], iter(())])
def test_an_empty_iterable_is_refused(loader: Any) -> None:
    with pytest.raises(TrainingError, match=r"run.steps\(.*\): it has no batch$"):
        source_of(loader).take(0)


def test_an_epoch_that_is_empty_is_refused() -> None:
    class Once:
        def __init__(self) -> None:
            self.batches = [1, 2]

        def __iter__(self) -> Iterator[int]:
            while self.batches:
                yield self.batches.pop(0)

    with pytest.raises(TrainingError, match=r"Once.*no more batches after step 2.*train.steps=2"):
        Interrupted(Once).run(3)


def test_samples_and_waiting_are_counted_without_the_help_of_the_loader() -> None:
    source = source_of([1, 2, 3], local_batch=4)
    before = source.usage
    for step in range(4):
        source.take(step)
    usage = source.usage - before
    assert (usage.batches, usage.samples) == (4, 16)
    assert 0 < usage.wait_s <= usage.elapsed_s
    assert usage.bound in ("consumer", "loader")
    assert "waiting" in usage.diagnosis()
    assert source.store_counts == {}
    assert (source.samples, source.position) == (None, None)
