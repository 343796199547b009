"""The state of a loader becomes plain values and comes back."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections import OrderedDict
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from checkpointing.format.values.json_values import decode, encode
from hpckit.trainer.batches.loader_state import (
    epoch_setters,
    packed,
    parts_of,
    state_methods,
    unpacked,
)
from hpckit.trainer.errors import TrainingError
from tests.unit.hpckit.trainer.batches.sources import Counter, Epochs, NumberedEpochs, Numbers


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).T,
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.get_rng_state(),
    ],
    ids=["strided", "scalar", "empty", "bools", "generator"],
)
def test_tensors_are_saved_as_values(tensor: torch.Tensor) -> None:
    state: Any = {"a": [OrderedDict(b=(tensor, 1)), None], 3: "x"}
    back = unpacked(decode(encode(packed(state), "")))
    found = back["a"][0]["b"][0]
    assert torch.equal(found, tensor)
    assert found.dtype == tensor.dtype
    back["a"][0]["b"] = state["a"][0]["b"] = 0
    assert back == state


def test_the_methods_of_a_state_are_found_by_name() -> None:
    assert state_methods(Epochs(2)) is None
    assert state_methods(Counter()) is not None
    methods = state_methods(Numbers(3))
    assert methods is not None
    methods.load(b"2")
    assert methods.take() == b"2"


def test_set_epoch_of_a_loader_and_its_parts_is_found_once() -> None:
    loader, sampler = Epochs(2), NumberedEpochs(2)
    loader.sampler = loader.dataset = sampler  # type: ignore[attr-defined]
    assert parts_of(loader) == {"sampler": sampler, "dataset": sampler}
    for set_epoch in epoch_setters(loader):
        set_epoch(7)
    assert sampler.epoch == 7
    assert len(epoch_setters(loader)) == 1
    assert len(epoch_setters(sampler)) == 1


@pytest.fixture
def energon(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Classes with the names and fields that Megatron Energon documents for its states."""

    def of(module: str, name: str, *fields: str) -> Any:
        path = f"megatron.energon.{module}"
        made = (
            dataclasses.make_dataclass(name, fields, kw_only=True, slots=True)
            if fields
            else type(name, (dict,), {})
        )
        made.__module__ = path
        holder = sys.modules.get(path)
        if holder is None or not hasattr(holder, "__fake__"):
            holder = ModuleType(path)
            holder.__dict__["__fake__"] = True
            monkeypatch.setitem(sys.modules, path, holder)
        setattr(holder, name, made)
        return made

    for package in ("megatron", "megatron.energon"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    return {
        "loader": of(
            "savable_loader",
            "SavableDataLoaderState",
            *("worker_states", "next_worker_id", "micro_batch_size"),
        ),
        "checkpoint": of("savable_loader", "SavableDatasetCheckpoint", "state", "offset"),
        "dataset": of("savable_loader", "SavableDatasetState", "rng", "dataset_state"),
        "rng": of("rng", "SystemRngState", "torch", "numpy", "random"),
        "flex": of("state", "FlexState"),
    }


def energon_state(classes: dict[str, Any], position: int) -> Any:
    rng = classes["rng"](
        torch=torch.get_rng_state(),
        numpy=np.random.RandomState(position).get_state(),
        random=random.Random(position).getstate(),
    )
    inside = classes["flex"](rng=b"\x00\xff", datasets=[classes["flex"](position=position)])
    dataset = classes["dataset"](rng=rng, dataset_state=inside)
    checkpoint = classes["checkpoint"](state=dataset, offset=3)
    return classes["loader"](worker_states=[checkpoint], next_worker_id=1, micro_batch_size=None)


def test_a_state_of_classes_of_energon_comes_back_as_these(energon: dict[str, Any]) -> None:
    state = energon_state(energon, 7)
    back = unpacked(decode(encode(packed(state), "")))
    assert type(back) is energon["loader"]
    (checkpoint,) = back.worker_states
    assert (type(checkpoint), checkpoint.offset) == (energon["checkpoint"], 3)
    inside = checkpoint.state.dataset_state
    assert (type(inside), type(inside["datasets"][0])) == (energon["flex"], energon["flex"])
    assert inside == state.worker_states[0].state.dataset_state
    found, rng = checkpoint.state.rng, state.worker_states[0].state.rng
    assert torch.equal(found.torch, rng.torch)
    assert found.random == rng.random
    np.random.RandomState().set_state(found.numpy)
    assert all(map(np.array_equal, found.numpy, rng.numpy))


class EnergonLoader:
    """A loader with the methods that Megatron Energon documents."""

    def __init__(self, classes: dict[str, Any]) -> None:
        self._classes, self._position = classes, 0
        self._is_iterated = False

    def __iter__(self) -> Iterator[int]:
        self._is_iterated = True
        while True:
            self._position += 1
            yield self._position

    def save_state_rank(self) -> Any:
        return energon_state(self._classes, self._position)

    def restore_state_rank(self, state: Any) -> None:
        assert not self._is_iterated
        assert type(state) is self._classes["loader"]
        (checkpoint,) = state.worker_states
        self._position = checkpoint.state.dataset_state["datasets"][0]["position"]


def test_a_loader_of_energon_continues_at_its_state(energon: dict[str, Any]) -> None:
    loader = EnergonLoader(energon)
    methods = state_methods(loader)
    assert methods is not None
    batches = iter(loader)
    assert [next(batches) for _ in range(5)] == [1, 2, 3, 4, 5]
    stored = encode(packed(methods.take()), "")
    again = EnergonLoader(energon)
    resumed = state_methods(again)
    assert resumed is not None
    resumed.load(unpacked(decode(stored)))
    assert next(iter(again)) == 6


def test_without_energon_its_state_is_refused_in_words(
    energon: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = encode(packed(energon_state(energon, 1)), "")
    for module in ("state", "savable_loader", "rng", "flavors.base_dataset"):
        monkeypatch.setitem(sys.modules, f"megatron.energon.{module}", None)
    with pytest.raises(TrainingError, match="not installed or has no such"):
        unpacked(decode(stored))
