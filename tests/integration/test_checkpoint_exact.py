"""One process, a real store: what is restored is, bit for bit, what was saved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import checkpointing.saving as saving
from checkpointing import (
    Best,
    Checkpointer,
    CheckpointError,
    FormatError,
    Last,
    Minutes,
    Only,
    Steps,
    Store,
    StoreError,
    StructureError,
    list_checkpoints,
    verify,
)
from checkpointing.dtypes import dtype_name, is_placeholder
from checkpointing.ranks import Ranks
from checkpointing.store import writer
from checkpointing.store.index import Index, Known
from checkpointing.store.marks import pin
from tests.integration.damage import check, damage_newest, packs_of, reseal

Events = list[tuple[str, dict[str, Any]]]


def recorder() -> tuple[Events, Callable[..., None]]:
    events: Events = []
    return events, lambda kind, **fields: events.append((kind, fields))


def save_one(store: Path, step: int, state: dict[str, Any], **options: Any) -> None:
    ckpt = Checkpointer(store, run="r", **options)
    ckpt.save(step, state)
    ckpt.close()


def restore_one(store: Path, state: dict[str, Any], **options: Any) -> int | None:
    ckpt = Checkpointer(store, run="r", **options)
    try:
        return ckpt.restore(state)
    finally:
        ckpt.close()


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
    """The writer is held back until the trainer has changed everything."""
    gate = threading.Event()
    write = writer.write

    def held_back(*args: Any) -> Any:
        assert gate.wait(60)
        return write(*args)

    events, on_event = recorder()
    state: dict[str, Any] = {"w": torch.ones(1000), "values": {"list": [1]}}
    with mock.patch.object(saving, "write", held_back):
        ckpt = Checkpointer(tmp_path, run="r", on_event=on_event)
        ckpt.save(1, state)
        ckpt.save(1, state)  # started already: nothing happens, nobody waits
        state["w"].fill_(2.0)
        state["values"]["list"].append(2)
        threading.Timer(0.2, gate.set).start()
        ckpt.save(2, state)  # waits for the first, whose buffers it needs
        state["w"].fill_(3.0)
        ckpt.close()
    kinds = [kind for kind, _ in events]
    assert kinds.count("checkpoint_started") == kinds.count("checkpoint_committed") == 2
    assert kinds.index("checkpoint_waited") > kinds.index("checkpoint_committed")
    assert restore_one(tmp_path, state) == 2
    assert torch.equal(state["w"], torch.full((1000,), 2.0))
    assert state["values"] == {"list": [1, 2]}
    (tmp_path / list_checkpoints(tmp_path)[1].key).unlink()
    assert restore_one(tmp_path, state) == 1
    assert torch.equal(state["w"], torch.ones(1000))
    assert state["values"] == {"list": [1]}


def test_a_commit_counts_even_if_a_peer_is_gone_before_it_is_told(tmp_path: Path) -> None:
    together = Ranks.together

    def lose_the_peer(ranks: Ranks, do: Callable[[], Any], group: Any) -> Any:
        answers = together(ranks, do, group)
        if do.__name__ == "commit_it":
            raise RuntimeError("Connection closed by peer")
        return answers

    events, on_event = recorder()
    with mock.patch.object(Ranks, "together", lose_the_peer):
        save_one(tmp_path, 1, {"w": torch.ones(2)}, on_event=on_event)
    assert check(tmp_path) == {1: []}
    assert [kind for kind, _ in events][-1] == "checkpoint_committed"


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


def test_retention_prunes_and_what_is_left_of_a_prune_is_no_checkpoint(tmp_path: Path) -> None:
    events, on_event = recorder()
    keep: list[Last | Best] = [Last(2), Best("loss")]
    ckpt = Checkpointer(tmp_path, run="r", keep=keep, every=Steps(2), on_event=on_event)
    state = {"w": torch.zeros(3)}
    losses = {2: 0.5, 4: 0.1, 6: 0.3, 8: 0.4, 10: float("nan")}
    for step in range(11):
        if ckpt.due(step):
            state["w"].fill_(step)
            ckpt.save(step, state, metrics={"loss": losses[step]})
    ckpt.close()
    assert check(tmp_path) == {4: [], 8: [], 10: []}
    assert [f["step"] for kind, f in events if kind == "checkpoint_pruned"] == [2, 6]

    (tmp_path / list_checkpoints(tmp_path)[-1].key).unlink()  # as a prune that was cut short
    assert check(tmp_path) == {4: [], 8: []}
    assert restore_one(tmp_path, state) == 8
    assert torch.equal(state["w"], torch.full((3,), 8.0))


def test_a_pinned_checkpoint_is_not_pruned(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, run="r", keep=[Last(1)])
    state = {"w": torch.zeros(3)}
    for step in (1, 2, 3):
        ckpt.save(step, state)
        ckpt.wait()
        if step == 1:
            store = Store.open(tmp_path)
            pin(store, list_checkpoints(tmp_path)[0].save, "before the spike")
            store.close()
    ckpt.close()
    assert check(tmp_path) == {1: [], 3: []}


def test_items_that_retention_took_out_are_nothing_to_go_on_with(tmp_path: Path) -> None:
    keep = [Only(("model",), Last(3))]
    ckpt = Checkpointer(tmp_path, run="r", keep=keep)
    state = {"model": {"w": torch.ones(3)}, "optimizer": {"m": torch.ones(5)}}
    for step in (1, 2, 3):
        state["optimizer"]["m"].fill_(step)
        ckpt.save(step, state)
        ckpt.wait()
    ckpt.close()
    infos = list_checkpoints(tmp_path)
    assert [(i.step, i.state, i.items) for i in infos] == [
        (1, "partial", ("model",)),
        (2, "partial", ("model",)),
        (3, "committed", ("model", "optimizer")),
    ]
    assert restore_one(tmp_path, state) == 3
    damage_newest(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        restore_one(tmp_path, state)
    assert f"{infos[1].id}: retention took out optimizer" in str(caught.value)
    assert f"{infos[2].id}: " in str(caught.value)


def test_going_back_saves_the_same_steps_again(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, run="r", every=Steps(1))
    state = {"w": torch.zeros(2)}
    for step in (1, 2):
        state["w"].fill_(step)
        ckpt.save(step, state)
    ckpt.wait()
    damage_newest(tmp_path)
    assert ckpt.restore(state) == 1
    assert not ckpt.due(1)
    assert ckpt.due(2)
    ckpt.save(2, state.copy() | {"w": torch.ones(2)})
    ckpt.wait()
    assert ckpt.restore(state) == 2
    assert torch.equal(state["w"], torch.ones(2))
    ckpt.close()


def test_a_damaged_newest_does_not_push_out_whole_ones(tmp_path: Path) -> None:
    state = {"w": torch.zeros(3)}
    save_one(tmp_path, 1, state)
    state["w"].fill_(9.0)
    save_one(tmp_path, 9, state)
    damage_newest(tmp_path)
    events, on_event = recorder()
    ckpt = Checkpointer(tmp_path, run="r", keep=[Last(1)], on_event=on_event)
    assert ckpt.restore(state) == 1
    assert torch.equal(state["w"], torch.zeros(3))
    ckpt.save(2, state)
    ckpt.close()
    assert [i.step for i in list_checkpoints(tmp_path)] == [2, 9]
    (skipped,) = [fields for kind, fields in events if kind == "checkpoint_skipped"]
    assert (skipped["step"], skipped["id"]) == (9, list_checkpoints(tmp_path)[1].id)
    assert "'w': packs/" in skipped["reason"]


def test_what_is_saved_after_damage_refers_to_nothing_damaged(tmp_path: Path) -> None:
    """A run that is repeated exactly comes to the very content that is damaged in the store."""
    states = {step: {"w": torch.full((1000,), float(step))} for step in (1, 2)}
    for step in (1, 2):
        states[step]["w"][:3] = torch.rand(3)
        save_one(tmp_path, step, states[step])
    damage_newest(tmp_path)
    state = {"w": torch.zeros(1000)}
    ckpt = Checkpointer(tmp_path, run="r")
    assert ckpt.restore(state) == 1
    ckpt.save(2, states[2])
    ckpt.close()
    assert restore_one(tmp_path, state) == 2
    assert torch.equal(state["w"], states[2]["w"])
    damaged, whole = [verify(tmp_path, info) for info in list_checkpoints(tmp_path)[1:]]
    assert damaged != []
    assert whole == []


def test_what_was_read_from_another_copy_is_stored_anew(tmp_path: Path) -> None:
    state = {"w": torch.rand(1000)}
    with mock.patch.object(Known, "index", return_value=Index()):  # each run has its own copy
        for run in ("other", "r"):
            ckpt = Checkpointer(tmp_path, run=run)
            ckpt.save(1, state)
            ckpt.close()
    damage_newest(tmp_path, run="r")
    ckpt = Checkpointer(tmp_path, run="r")
    restored = {"w": torch.zeros(1000)}
    assert ckpt.restore(restored) == 1
    assert torch.equal(restored["w"], state["w"])
    ckpt.save(2, restored)
    ckpt.close()
    first, second = list_checkpoints(tmp_path, "r")
    assert not packs_of(tmp_path, first) & packs_of(tmp_path, second)
    assert verify(tmp_path, second) == []


def test_of_two_saves_of_one_step_the_later_is_restored(tmp_path: Path) -> None:
    for turn in range(3):
        save_one(tmp_path, 2, {"w": torch.full((3,), float(turn))})
    state = {"w": torch.zeros(3)}
    assert restore_one(tmp_path, state) == 2
    assert torch.equal(state["w"], torch.full((3,), 2.0))
    assert [info.step for info in list_checkpoints(tmp_path)] == [2, 2, 2]


def test_what_is_older_than_what_is_restored_is_of_no_account(tmp_path: Path) -> None:
    state = {"w": torch.zeros(3)}
    for step in (1, 2, 3):
        save_one(tmp_path, step, state)
    first, second, _ = (tmp_path / info.key for info in list_checkpoints(tmp_path))
    first.write_bytes(b"")
    second.write_bytes(reseal(second.read_bytes(), {"version": 2}))
    events, on_event = recorder()
    assert restore_one(tmp_path, state, on_event=on_event) == 3
    assert [kind for kind, _ in events] == ["checkpoint_restored"]


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
    with pytest.raises(FormatError, match="version 2 is not known"):
        restore_one(tmp_path, state)
    manifest.write_bytes(reseal(whole, {"features": ["sparse"]}))
    with pytest.raises(FormatError, match="features that are not known here: sparse"):
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
    with pytest.raises(
        StoreError, match=f"cannot keep checkpoints in {tmp_path}/file/store: rank 0"
    ):
        Checkpointer(tmp_path / "file" / "store", run="r")
    with pytest.raises(ValueError, match="run name"):
        Checkpointer(tmp_path, run="../other")


def test_minutes_in_one_process(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, run="r", every=Minutes(1))
    with mock.patch.object(time, "monotonic") as now:
        now.return_value = ckpt._last_save_s + 59
        assert not ckpt.due(1)
        now.return_value += 1
        assert ckpt.due(2)
        ckpt.save(2, {"w": torch.zeros(1)})
        assert not ckpt.due(3)
    ckpt.close()
    with pytest.raises(CheckpointError, match="closed"):
        ckpt.due(4)
