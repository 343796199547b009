"""What `run.steps` accepts, and what it refuses before the first step."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from checkpointing import PerRank
from data import Loader
from data.read.device_transfer import to_device
from hpckit.trainer.batches.per_rank_source import StatefulSource, StatelessSource
from hpckit.trainer.batches.step_source import SharedStateSource
from hpckit.trainer.errors import TrainingError
from tests.unit.hpckit.trainer.batches.sources import Counter, Epochs, source_of


class _Samples(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        (None, r"run.steps\(NoneType\): it is not iterable"),
        (_Samples(), "it is not iterable; give an iterable, such as a DataLoader over it"),
        (lambda: iter([1]), "it is not iterable; give an iterable: call it"),
    ],
)
def test_what_is_not_iterable_is_refused(loader: object, says: str) -> None:
    with pytest.raises(TrainingError, match=says):
        source_of(loader)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(TrainingError, match="error, first, next_epoch or a function, not 'last'"):
        source_of(Counter(), other_world="last")


@pytest.mark.parametrize("kept_by", ["itself", "PerRank"])
def test_a_tracked_part_of_what_is_read_again_is_refused(kept_by: str) -> None:
    sampler = SequentialSampler(range(5))
    loader: Any = DataLoader(_Samples(), sampler=sampler)
    held: Any = sampler if kept_by == "itself" else PerRank(sampler)
    with pytest.raises(TrainingError, match=r"run.track\(mine=...\) is the sampler of the DataLoa"):
        source_of(loader, {"mine": held})
    assert isinstance(source_of(loader, {"other": SequentialSampler(range(5))}), StatelessSource)


def test_the_kind_is_chosen_by_what_the_loader_can_do() -> None:
    assert isinstance(source_of(Counter()), StatefulSource)
    assert isinstance(source_of(Epochs(3)), StatelessSource)
    ours = object.__new__(Loader)
    for loader in (ours, to_device(ours, "cpu")):
        source = source_of(loader)
        assert isinstance(source, SharedStateSource)
        assert source.tracked is loader
