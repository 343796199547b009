"""Snapshots that are copied while training goes on are of one moment, or are not used."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from checkpointing import Checkpoint, Checkpointer, SaveError, Store, list_checkpoints
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.staging.stager import Stager
from checkpointing.staging.tensor_copy import copy_quietly
from checkpointing.state.item_adapters import to_save
from checkpointing.store.catalog import committed
from tests.integration.checkpoint.single_process_saves import Events, recorder, restore_one
from tests.integration.checkpoint.store_damage import check

Copying = Callable[[Sequence[Tensor], Sequence[Tensor]], None]
SOON_S = 180.0


@contextmanager
def copying_by(copy: Copying) -> Iterator[None]:
    """What is copied beside the trainer is copied so."""
    with mock.patch.dict(Stager.__init__.__kwdefaults__, {"copy_later": copy}):
        yield


def slowly(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        time.sleep(0.02)
        copy_quietly([target], [source])


def make(**options: Any) -> dict[str, Any]:
    torch.manual_seed(1)
    # what is larger than what is copied at once
    model = nn.Sequential(nn.Linear(400, 300), nn.BatchNorm1d(300), nn.Linear(300, 200))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), **options)}


def train(state: dict[str, Any]) -> None:
    state["model"](torch.randn(8, 400)).square().mean().backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def tensors_of(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in to_save(state).tensors.items()}


def of_kind(events: Events, kind: str) -> list[dict[str, Any]]:
    return [fields for one, fields in events if one == kind]


@pytest.mark.parametrize("options", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_an_optimizer_that_steps_while_a_copy_runs_tears_nothing(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    events, on_event = recorder()
    state = make(**options)
    expected = {}
    with copying_by(slowly):
        ckpt = Checkpointer(tmp_path, run="r", on_event=on_event)
        ckpt.restore(state)
        train(state)
        for step in (1, 2, 3):
            expected[step] = tensors_of(state)
            ckpt.save(step, state)
            train(state)  # the first step waits for the copy
            train(state)
            ckpt.wait()
        ckpt.close()
    assert of_kind(events, "checkpoint_failed") == []
    assert check(tmp_path) == {1: [], 2: [], 3: []}
    store = Store.open(tmp_path)
    for found in committed(store)[0]:
        checkpoint = Checkpoint(store, found.stored)
        for name, tensor in expected[checkpoint.header.save.step].items():
            stored = torch.from_numpy(checkpoint.read(name)).view(tensor.dtype)
            assert torch.equal(stored.view(tensor.shape), tensor), name
    store.close()


class Gate:
    """A copy that does not begin before it is let."""

    def __init__(self) -> None:
        self.begun, self.let = threading.Event(), threading.Event()

    def copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        self.begun.set()
        assert self.let.wait(SOON_S)
        copy_quietly(targets, sources)


def test_who_writes_to_a_parameter_without_the_optimizer_is_found_out(tmp_path: Path) -> None:
    events, on_event = recorder()
    gate, state = Gate(), make()
    with copying_by(gate.copy):
        ckpt = Checkpointer(tmp_path, run="r", on_event=on_event)
        ckpt.restore(state)
        train(state)
        ckpt.save(1, state)
        assert gate.begun.wait(SOON_S)
        with torch.no_grad():
            state["model"][0].weight.add_(1.0)
        gate.let.set()
        with pytest.raises(SaveError, match=r"step 1: rank 0: 'model/0.weight' changed while"):
            ckpt.wait()
    (failed,) = of_kind(events, "checkpoint_failed")
    assert failed["step"] == 1
    assert list_checkpoints(tmp_path) == []
    ckpt.save(1, state)
    ckpt.wait()
    ckpt.close()
    assert check(tmp_path) == {1: []}
    other = make()
    assert restore_one(tmp_path, other) == 1
    assert torch.equal(other["model"][0].weight, state["model"][0].weight)


def by_data(weight: Tensor) -> None:
    weight.data.mul_(0.9)


def by_a_numpy_alias(weight: Tensor) -> None:
    weight.detach().numpy()[:] += 1


def by_foreach_of_data(weight: Tensor) -> None:
    torch._foreach_mul_([weight.data], 0.5)


def by_raw_memory(weight: Tensor) -> None:
    writer = threading.Thread(target=ctypes.memset, args=(weight.data_ptr(), 1, weight.nbytes // 2))
    writer.start()
    writer.join()


@contextmanager
def being_copied(root: Path, gate: Gate, state: dict[str, Any]) -> Iterator[Checkpointer]:
    """A save of a state that was trained, whose copy has come to the gate."""
    with copying_by(gate.copy):
        ckpt = Checkpointer(root, run="r")
        ckpt.restore(state)
        train(state)
        ckpt.save(1, state)
        assert gate.begun.wait(SOON_S)
        yield ckpt


@pytest.mark.parametrize("write", [by_data, by_a_numpy_alias, by_foreach_of_data, by_raw_memory])
@pytest.mark.parametrize("is_taken_back", [False, True], ids=["stays", "taken back"])
def test_what_torch_does_not_count_is_found_out_too(
    tmp_path: Path, write: Callable[[Tensor], None], is_taken_back: bool
) -> None:
    """Also if the copy only began after the write, and was over before it was taken back, as when
    the averages of an evaluation are swapped in and out."""
    gate, state = Gate(), make()
    with being_copied(tmp_path, gate, state) as ckpt:
        before = tensors_of(state)
        weight = state["model"][0].weight
        write(weight)
        gate.let.set()
        if is_taken_back:
            ckpt._shipper._stager._overlap._wait_for_cpu()  # type: ignore[attr-defined]
            weight.data.copy_(before["model/0.weight"])
        with pytest.raises(SaveError, match=r"step 1: rank 0: 'model/0.weight' changed while"):
            ckpt.wait()
    assert list_checkpoints(tmp_path) == []
    ckpt.close()


def test_what_is_small_is_as_it_was_whatever_writes_to_it(tmp_path: Path) -> None:
    gate, state = Gate(), make()
    with being_copied(tmp_path, gate, state) as ckpt:
        before = tensors_of(state)
        state["model"][0].bias.data.mul_(3)
        gate.let.set()
        ckpt.close()
    other = make()
    restore_one(tmp_path, other)
    assert torch.equal(other["model"][0].bias, before["model/0.bias"])


def test_a_copy_that_breaks_fails_its_save_alone(tmp_path: Path) -> None:
    def broken(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        raise MemoryError("no more")

    events, on_event = recorder()
    state = make()
    with copying_by(broken):
        ckpt = Checkpointer(tmp_path, run="r", on_event=on_event)
        ckpt.restore(state)
        ckpt.save(1, state)
        with pytest.raises(SaveError, match="step 1: rank 0: cannot copy the state: no more"):
            ckpt.wait()
    stager = ckpt._shipper._stager  # type: ignore[attr-defined]
    assert isinstance(stager, Stager)
    stager._copy_later = copy_quietly
    with mock.patch.object(ServiceClient, "staged", side_effect=RuntimeError("a bug")):
        ckpt.save(2, state)
        with pytest.raises(SaveError, match="step 2: rank 0: a bug"):
            ckpt.wait()
    ckpt.save(3, state)
    ckpt.close()
    assert [fields["step"] for fields in of_kind(events, "checkpoint_failed")] == [1, 2]
    assert check(tmp_path) == {3: []}


def test_other_optimizers_and_modules_may_come_at_any_save(tmp_path: Path) -> None:
    """Whose steps wait, and whose no longer."""
    first, second = make(), make()
    train(first)
    train(second)
    with copying_by(slowly):
        ckpt = Checkpointer(tmp_path, run="r")
        ckpt.save(1, first)
        train(first)
        ckpt.wait()
        expected = deepcopy(second["model"].state_dict())
        ckpt.save(2, second)
        train(second)
        ckpt.wait()
        ckpt.close()
    assert not first["optimizer"]._optimizer_step_pre_hooks
    assert not second["optimizer"]._optimizer_step_pre_hooks
    assert check(tmp_path) == {1: [], 2: []}
    other = make()
    assert restore_one(tmp_path, other) == 2
    for name, tensor in other["model"].state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_without_overlap_all_is_copied_when_save_returns(tmp_path: Path) -> None:
    state, gate = make(), Gate()
    train(state)
    with copying_by(gate.copy):  # is never let
        ckpt = Checkpointer(tmp_path, run="r", overlap=False)
        ckpt.save(1, state)
        expected = tensors_of(state)
        with torch.no_grad():
            state["model"][0].weight.add_(1.0)
        ckpt.close()
    other = make()
    assert restore_one(tmp_path, other) == 1
    got = tensors_of(other)
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())
