"""Keyword arguments of another name or type are refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data import DataError, Loader, mixed, open_dataset
from data.read.dataset import Dataset
from tests.unit.data.tars import write_tar


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    write_tar(tmp_path / "0.tar", [(f"{number}.txt", b"x") for number in range(8)])
    return open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"global_batch": 2.5}, "Loader: global_batch must be a whole number, got 2.5"),
        ({"global_batch": True}, "Loader: global_batch must be a whole number, got True"),
        ({"epochs": "1"}, "Loader: epochs must be a whole number or None, got '1'"),
        (
            {"transform": lambda sample: sample},
            "transform is called as transform(sample, context),",
        ),
        ({"collate": lambda: []}, "collate is called as collate(items), but <function"),
        ({"transform": 3}, "Loader: transform must be a function or None, got 3"),
        ({"shuffle": "no"}, "Loader: shuffle must be True or False, got 'no'"),
        ({"world": 2}, "Loader: no argument is named world; did you mean world_size?"),
        ({"batch_size": 2}, "Loader: no argument is named batch_size; did you mean global_batch?"),
        ({"nonsense": 2}, "Loader: no argument is named nonsense; they are dataset, "),
        ({"prefetched": 2}, "Loader: no argument is named prefetched; did you mean prefetch?"),
    ],
)
def test_an_argument_of_a_loader(dataset: Dataset, keyword: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as told:
        Loader(dataset, **{"global_batch": 4, **keyword})
    assert str(told.value).startswith(message)


def test_a_loader_wants_an_open_dataset(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must be what open_dataset or mixed returns, got str"):
        Loader("data.tar", global_batch=4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"cache": 3}, "open_dataset: cache must be text or a path or None, got 3"),
        ({"cache_bytes": "5GB"}, "open_dataset: cache_bytes must be a whole number, got '5GB'"),
        ({"cash": "x"}, "open_dataset: no argument is named cash; did you mean cache?"),
    ],
)
def test_an_argument_of_open_dataset(tmp_path: Path, keyword: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as told:
        open_dataset(**{"shards": tmp_path, **keyword})
    assert str(told.value) == message


def test_an_argument_of_a_mixture(dataset: Dataset) -> None:
    with pytest.raises(TypeError, match="mixed: seed must be a whole number, got 'x'"):
        mixed([dataset], [1], seed="x")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no datasets given"):
        mixed([], [])
    with pytest.raises(DataError, match=r"weights and names are lists, .* got None"):
        mixed([dataset], None)  # type: ignore[arg-type]
    for wrong in ({"a": dataset}, ["a"], "a", None):
        with pytest.raises(DataError, match="datasets must be a list of open datasets, got"):
            mixed(wrong, [1])  # type: ignore[arg-type]
