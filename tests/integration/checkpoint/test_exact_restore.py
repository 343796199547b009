"""One process, a real store: what is restored is, bit for bit, what was saved."""

from __future__ import annotations

import copy
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from checkpointing import (
    Checkpointer,
    CheckpointError,
    FormatError,
    Minutes,
    StoreError,
    StructureError,
    list_checkpoints,
)
from checkpointing.format.torch_dtypes import dtype_name, is_placeholder
from checkpointing.save.slot_shipper import SlotShipper
from checkpointing.service.client.service_client import ServiceClient
from tests.integration.checkpoint.single_process_saves import recorder, restore_one, save_one
from tests.integration.checkpoint.store_damage import (
    check,
    committed_in,
    damage_newest,
    flip_byte,
    packs_of,
    reseal,
)
from tests.integration.service.running_services import pid_of
from tests.stopped_processes import stop
from tests.unit.checkpointing.plain import same


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return bytes(flat.tolist())


def all_dtypes() -> dict[str, torch.Tensor]:
    """Each dtype that has operations, but the quantized ones, holding every byte value."""
    every_byte = torch.arange(256).to(torch.uint8)
    dtypes = {d for name in dir(torch) if isinstance(d := getattr(torch, name), torch.dtype)}
    plain = [d for d in dtypes if not (dtype_name(d).startswith("q") or is_placeholder(d))]
    return {dtype_name(dtype): every_byte.clone().view(dtype) for dtype in plain}


def special_tensors() -> dict[str, torch.Tensor]:
    payload = torch.tensor([0x7FC12345, 0x7F812345 - (1 << 32), -(1 << 31)], dtype=torch.int64)
    base = torch.arange(24.0).view(4, 6)
    return {
        "nan payloads and -0.0": payload.to(torch.int32).view(torch.float32),
        "0-dim": torch.tensor(3.5, dtype=torch.bfloat16),
        "zero size": torch.empty(0, 4),
        "transposed": base.t(),
        "strided": base[:, ::2],
        "row of a larger one": base[1],
        "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "with / and ~ in its name": torch.ones(1),
        "cut/at": torch.zeros(2, 1, 3),
    }


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_every_dtype_and_layout_is_bit_exact(tmp_path: Path) -> None:
    tensors = all_dtypes() | special_tensors()
    assert {"bfloat16", "float8_e4m3fn", "bool", "complex64", "uint64", "int8"} <= tensors.keys()
    save_one(tmp_path, 1, {"t": tensors, "list": [torch.ones(2), {"x": torch.zeros(1)}]})
    target = {name: torch.zeros(t.nbytes, dtype=torch.uint8) for name, t in tensors.items()}
    target = {
        name: b.view(tensors[name].dtype).view(tensors[name].shape) for name, b in target.items()
    }
    target["transposed"] = torch.zeros(4, 6).t()
    state: dict[str, Any] = {"t": target, "list": [torch.zeros(2), {"x": torch.ones(1)}]}
    assert restore_one(tmp_path, state) == 1
    for name, tensor in tensors.items():
        assert state["t"] is target
        assert bits(target[name]) == bits(tensor.resolve_conj()), name
    assert torch.equal(state["list"][0], torch.ones(2))
    assert check(tmp_path) == {1: []}


class Counter:
    def __init__(self) -> None:
        self.held: dict[str, Any] = {"n": 0, "buffer": torch.zeros(2)}

    def state_dict(self) -> dict[str, Any]:
        return {**self.held, "buffer": self.held["buffer"].clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state


def make(seed: int, param_dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).to(param_dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3]),
        "counter": Counter(),
        "progress": {"epoch": 0, "losses": [], "shape": (0,)},
        "best": 0.0,
        "rng": torch.get_rng_state(),
    }


def train(state: dict[str, Any], steps: int) -> list[float]:
    losses = []
    generator = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        dtype = next(state["model"].parameters()).dtype
        loss = state["model"](torch.randn(6, 4, generator=generator).to(dtype)).square().mean()
        loss.backward()
        state["optimizer"].step()
        state["scheduler"].step()
        state["optimizer"].zero_grad()
        losses.append(loss.item())
    return losses


def test_training_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path) -> None:
    state = make(seed=1)
    train(state, 3)
    state["counter"].held = {"n": 3, "buffer": torch.ones(2)}
    state["progress"] |= {"epoch": 1, "losses": [1.5, float("nan")], "shape": (2, 3)}
    state["best"] = float("-inf")
    save_one(tmp_path, 3, state)

    other = make(seed=2)
    progress = other["progress"]
    assert restore_one(tmp_path, other) == 3
    assert other["progress"] is progress
    assert repr(progress) == "{'epoch': 1, 'losses': [1.5, nan], 'shape': (2, 3)}"
    assert other["best"] == float("-inf")
    assert other["counter"].held["n"] == 3
    assert torch.equal(other["counter"].held["buffer"], torch.ones(2))
    assert torch.equal(other["rng"], state["rng"])
    assert other["scheduler"].state_dict() == state["scheduler"].state_dict()
    assert train(other, 4) == train(state, 4)


def test_an_optimizer_that_has_not_stepped_stays_so(tmp_path: Path) -> None:
    state, untouched = make(seed=1), make(seed=1)
    save_one(tmp_path, 0, state)
    assert not state["optimizer"].state
    other = make(seed=2)
    train(other, 2)  # even one that has stepped goes back
    assert restore_one(tmp_path, other) == 0
    fresh = make(seed=2)
    assert restore_one(tmp_path, fresh) == 0
    assert train(state, 3) == train(other, 3) == train(fresh, 3) == train(untouched, 3)


def test_fp32_moments_of_bf16_weights_stay_fp32(tmp_path: Path) -> None:
    def to_fp32(state: dict[str, Any]) -> list[torch.Tensor]:
        moments = []
        for held in state["optimizer"].state.values():
            held["exp_avg"] = held["exp_avg"].float() + 1e-9
            moments.append(held["exp_avg"])
        return moments

    state, other = make(1, torch.bfloat16), make(2, torch.bfloat16)
    train(state, 1)
    train(other, 1)
    expected = [m.clone() for m in to_fp32(state)]
    to_fp32(other)
    save_one(tmp_path, 1, state)
    restore_one(tmp_path, other)
    got = [held["exp_avg"] for held in other["optimizer"].state.values()]
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(got, expected, strict=True))


def test_changes_after_save_do_not_reach_the_checkpoint(tmp_path: Path) -> None:
    """The service is stopped until the trainer has changed everything."""
    events, on_event = recorder()
    state: dict[str, Any] = {"w": torch.ones(1000), "values": {"list": [1]}}
    ckpt = Checkpointer(tmp_path, run="r", on_event=on_event)
    finish_claim = SlotShipper._finish_claim

    def save_and_change(step: int) -> None:
        pid = pid_of(tmp_path)

        def stop_after(*args: Any) -> int | str:
            slot = finish_claim(*args)
            stop(pid)
            return slot

        with mock.patch.object(SlotShipper, "_finish_claim", stop_after):
            ckpt.save(step, state)
            ckpt.save(step, state)  # started already: nothing happens, nobody waits
        state["w"].fill_(step + 1.0)
        state["values"]["list"].append(step + 1)
        os.kill(pid, signal.SIGCONT)
        ckpt.wait()

    save_and_change(1)
    save_and_change(2)
    ckpt.close()
    kinds = [kind for kind, _ in events]
    expected = ["checkpoint_started", "checkpoint_staged", "checkpoint_committed"]
    assert kinds == expected * 2
    assert restore_one(tmp_path, state) == 2
    assert torch.equal(state["w"], torch.full((1000,), 2.0))
    assert state["values"] == {"list": [1, 2]}
    (tmp_path / list_checkpoints(tmp_path)[1].key).unlink()
    assert restore_one(tmp_path, state) == 1
    assert torch.equal(state["w"], torch.ones(1000))
    assert state["values"] == {"list": [1]}


def test_what_is_told_of_a_save(tmp_path: Path) -> None:
    events, on_event = recorder()
    ckpt = Checkpointer(tmp_path, run="r", on_event=on_event)
    state = {"w": torch.rand(1000), "n": 1}
    for step in (1, 2):
        ckpt.save(step, state, metrics={"loss": 0.5})
        ckpt.wait()
    ckpt.close()
    first, second = list_checkpoints(tmp_path)
    told = [fields for kind, fields in events if kind == "checkpoint_committed"]
    assert [(f["step"], f["id"], f["store"]) for f in told] == [
        (info.step, info.id, str(tmp_path)) for info in (first, second)
    ]
    assert [f["bytes"] for f in told] == [4000, 4000]
    assert told[0]["new_bytes"] == sum(p.stat().st_size for p in packs_of(tmp_path, first))
    assert told[1]["new_bytes"] == 0, "nothing has changed, so nothing is stored again"
    assert packs_of(tmp_path, first) == packs_of(tmp_path, second)
    assert (first.items, first.raw_bytes, dict(first.metrics)) == (("n", "w"), 4000, {"loss": 0.5})


def test_what_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.zeros(3), "lr": 0.1}
    save_one(tmp_path, 1, state)
    with pytest.raises(StructureError) as caught:
        restore_one(tmp_path, {"w": torch.zeros(3, dtype=torch.bfloat16), "v": 1})
    text = str(caught.value)
    assert "w: float32[3] in the checkpoint, bfloat16[3] in the state" in text
    assert "values missing in the checkpoint (1):\n    v" in text
    assert "values not in the state (1):\n    lr" in text

    manifest = tmp_path / list_checkpoints(tmp_path)[0].key
    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b'"world_size":1', b'"world_size":2'))
    with pytest.raises(CheckpointError, match="hash does not match"):
        restore_one(tmp_path, state)
    manifest.write_bytes(reseal(whole, {"version": 2}))
    with pytest.raises(FormatError, match="version 2 is unknown"):
        restore_one(tmp_path, state)
    manifest.write_bytes(reseal(whole, {"features": ["sparse"]}))
    with pytest.raises(FormatError, match="features that are unknown here: sparse"):
        restore_one(tmp_path, state)
    manifest.write_bytes(reseal(whole, {}))
    assert restore_one(tmp_path, state) == 1


def test_a_state_that_cannot_be_saved_is_refused_before_anything_starts(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, run="r")
    for wrong in (object(), torch.zeros(2, device="meta"), torch.zeros(2).to_sparse()):
        with pytest.raises(TypeError, match=r"cannot save .*'things/x'"):
            ckpt.save(1, {"things": {"x": wrong, "w": torch.zeros(1)}})
    ckpt.save(1, {"w": torch.ones(1)})  # the step is not taken
    ckpt.close()
    assert check(tmp_path) == {1: []}


def test_stores_that_cannot_be_used_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nosuch"):
        Checkpointer("nosuch://bucket/ckpts", run="r")
    with pytest.raises(StoreError, match="an S3 URL is s3://bucket/folder"):
        Checkpointer("s3://", run="r")
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "store"
    with pytest.raises(StoreError, match=f"cannot keep checkpoints in {place}: create .*Not a dir"):
        Checkpointer(place, run="r")
    with pytest.raises(ValueError, match="run name"):
        Checkpointer(tmp_path, run="../other")


@pytest.mark.parametrize("is_fresh", [False, True])
def test_damage_is_passed_over_and_reaches_no_state(tmp_path: Path, *, is_fresh: bool) -> None:
    """What a failed restore leaves of a state that is fresh is undefined."""
    model = nn.Linear(64, 64)
    for step in (1, 2):
        nn.init.constant_(model.weight, step)
        nn.init.constant_(model.bias, -step)
        save_one(tmp_path, step, {"model": model, "tied": [model.weight.detach(), torch.ones(2)]})
    damage_newest(tmp_path)
    found = nn.Linear(64, 64)
    tied = [found.weight.detach(), torch.zeros(2)]
    state = {"model": found, "tied": tied}
    version = found.weight._version
    with closing(Checkpointer(tmp_path, run="r")) as ckpt:
        assert ckpt.restore(state, is_fresh=is_fresh) == 1
    assert (found.weight == 1).all()
    assert (found.bias == -1).all()
    assert (tied[1] == 1).all()
    assert found.weight._version > version
    for pack in packs_of(tmp_path, committed_in(tmp_path)[0]):
        flip_byte(pack, len(b"HPKPACK1"))
    with torch.no_grad():
        found.weight.fill_(5)
        found.bias.fill_(6)
    with (
        closing(Checkpointer(tmp_path, run="r")) as ckpt,
        pytest.raises(CheckpointError, match="no checkpoint of run 'r'"),
    ):
        ckpt.restore(state, is_fresh=is_fresh)
    if not is_fresh:
        assert (found.weight == 5).all()
        assert (found.bias == 6).all()


def with_adamw(content: float) -> dict[str, Any]:
    """A model whose parameters are all `content`, and an optimizer that has not stepped."""
    model = nn.Linear(64, 64)
    for parameter in model.parameters():
        nn.init.constant_(parameter, content)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.1)}


def test_damage_reaches_no_trainer_that_has_not_stepped_yet(tmp_path: Path) -> None:
    """The state of its optimizer is read into tensors that nothing else uses, before everything is
    checked; its parameters wait, and are what they were if nothing can be used."""
    saved = with_adamw(1)
    for step in (1, 2):
        for parameter in saved["model"].parameters():
            parameter.grad = torch.rand_like(parameter)
        saved["optimizer"].step()
        if step == 1:
            wanted = [copy.deepcopy(one.state_dict()) for one in saved.values()]
        save_one(tmp_path, step, saved)
    damage_newest(tmp_path)
    found = with_adamw(5)
    with closing(Checkpointer(tmp_path, run="r")) as ckpt:
        assert ckpt.restore(found) == 1
    for one, its in zip(found.values(), wanted, strict=True):
        assert same(one.state_dict(), its, ordered=False)
    for pack in packs_of(tmp_path, committed_in(tmp_path)[0]):
        flip_byte(pack, len(b"HPKPACK1"))
    again = with_adamw(5)
    with (
        closing(Checkpointer(tmp_path, run="r")) as ckpt,
        pytest.raises(CheckpointError, match="no checkpoint of run 'r'"),
    ):
        ckpt.restore(again)
    assert all((parameter == 5).all() for parameter in again["model"].parameters())
    assert all(parameter.grad is None for parameter in again["model"].parameters())
    assert not again["optimizer"].state


def test_the_memory_of_saves_is_allocated_once_a_restore_has_ended(tmp_path: Path) -> None:
    called: list[str] = []

    def noting(kind: type, name: str) -> Any:
        real = getattr(kind, name)

        def call(*arguments: Any) -> Any:
            called.append(name)
            return real(*arguments)

        return mock.patch.object(kind, name, call)

    with noting(ServiceClient, "resume"), noting(SlotShipper, "begin_allocation"):
        restore_one(tmp_path, {"w": torch.ones(3)})
    assert called == ["resume", "begin_allocation"]


def test_minutes_in_one_process(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, run="r", every=Minutes(1))
    with mock.patch.object(time, "monotonic") as now:
        now.return_value = ckpt._schedule._last_save_s + 59
        assert not ckpt.due(1)
        now.return_value += 1
        assert ckpt.due(2)
        ckpt.save(2, {"w": torch.zeros(1)})
        assert not ckpt.due(3)
    ckpt.close()
    with pytest.raises(CheckpointError, match="closed"):
        ckpt.due(4)
