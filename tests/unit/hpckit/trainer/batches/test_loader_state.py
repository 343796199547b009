"""The state of a loader becomes plain values and comes back."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

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
