"""What is kept, what is passed over for damage, and going back to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from checkpointing import (
    Best,
    Checkpointer,
    CheckpointError,
    Last,
    Only,
    Steps,
    Store,
    list_checkpoints,
    verify,
)
from checkpointing.store.pins_and_labels import pin
from tests.integration.checkpoint.single_process_saves import recorder, restore_one, save_one
from tests.integration.checkpoint.store_damage import check, damage_newest, packs_of, reseal


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
            ckpt.wait()
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
    assert f"{infos[1].id}: retention removed optimizer" in str(caught.value)
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
    for root, run in ((tmp_path, "r"), (tmp_path / "second", "other")):
        ckpt = Checkpointer(root, run=run)
        ckpt.save(1, state)
        ckpt.close()
    for folder in ("packs", "runs"):  # each run has its own copy
        shutil.copytree(tmp_path / "second" / folder, tmp_path / folder, dirs_exist_ok=True)
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
    assert [kind for kind, _ in events] == ["manifest_read", "checkpoint_restored"]
