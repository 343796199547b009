"""What the ledger has of batches that are not from a `data.Loader`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hpckit.trainer.errors import TrainingError
from hpckit.trainer.run_records import RunRecords


class _Ledger:
    def __init__(self) -> None:
        self.lines: list[Any] = []

    def write(self, *line: Any) -> None:
        self.lines.append(line)


def records(ledger: _Ledger | None) -> RunRecords:
    return cast(RunRecords, SimpleNamespace(_ledger=ledger))


@pytest.mark.parametrize(("keys", "written"), [(["a", "b"], ["a", "b"]), ("a", ["a"])])
def test_keys_of_a_dict_are_written(keys: Any, written: list[str]) -> None:
    ledger = _Ledger()
    RunRecords.note_batch(records(ledger), 3, {"__key__": keys, "x": torch.ones(2)})
    assert ledger.lines == [(3, (), written)]


@pytest.mark.parametrize("batch", [torch.ones(2), {"x": 1}, (1, 2)])
def test_a_batch_without_keys_is_refused_only_if_there_is_a_ledger(batch: Any) -> None:
    RunRecords.note_batch(records(None), 3, batch)
    with pytest.raises(TrainingError, match=r"debug.ledger: a batch of class \w+ does not say"):
        RunRecords.note_batch(records(_Ledger()), 3, batch)
