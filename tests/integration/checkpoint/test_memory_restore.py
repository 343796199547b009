"""What trainers leave in the memory of their node is what the next ones go on from."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from checkpointing import (
    Checkpointer,
    SaveError,
    Store,
    StoreError,
    StructureError,
    list_checkpoints,
)
from checkpointing.restore import memory_restore, store_restore
from checkpointing.save.slot_shipper import SlotShipper
from checkpointing.service.client.service_connection import ServiceConnection
from checkpointing.state.load_target import LoadTarget
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store.sessions.run_takeover import TakeoverResult
from tests.integration.checkpoint.single_process_saves import die, restore_one
from tests.integration.checkpoint.store_damage import check, committed_in
from tests.integration.rank_worlds import (
    Recorder,
    assert_same,
    run_world,
    run_worlds,
    seeded,
    whole,
)
from tests.integration.service.running_services import (
    IMPATIENT,
    Hold,
    elsewhere,
    kill_here,
    sabotaged,
    wait_until_ended,
)
from tests.stopped_processes import stop

WRITE_PART, COMMIT = (
    ("coordinator.rank_part_writer", "write_part"),
    ("coordinator.save_leader", "commit"),
)


def state_of(step: int) -> dict[str, Any]:
    tensor = torch.full((1000,), float(step))
    return {"w": tensor, "step": step, "nested": {"list": [torch.tensor(step), "x" * step]}}


def assert_is(state: dict[str, Any], step: int) -> None:
    expected = state_of(step)
    assert torch.equal(state["w"], expected["w"])
    assert torch.equal(state["nested"]["list"][0], expected["nested"]["list"][0])
    assert (state["step"], state["nested"]["list"][1]) == (step, "x" * step)


def resumed(root: Path, **options: Any) -> tuple[Checkpointer, int | None, str, dict[str, Any]]:
    """A trainer that has started; its step, tier and state."""
    events, state = Recorder(), state_of(0)
    ckpt = Checkpointer(root, run="r", on_event=events, **options)
    step = ckpt.restore(state)
    tiers = [fields["tier"] for kind, fields in events if kind == "checkpoint_restored"]
    return ckpt, step, tiers[0] if tiers else "none", state


@contextmanager
def slow_store(tmp: Path) -> Iterator[tuple[Path, Hold]]:
    """A store in which nothing becomes durable before the block ends."""
    root, hold = tmp / "store", Hold(tmp)
    with sabotaged(root, IMPATIENT + hold.sabotage(WRITE_PART)):
        hold.close()
        yield root, hold


def committed_steps(root: Path) -> list[int]:
    return [info.step for info in list_checkpoints(root) if info.state == "committed"]


def test_what_is_in_memory_alone_survives_one_trainer_after_another(tmp_path: Path) -> None:
    with slow_store(tmp_path) as (root, hold):
        ckpt = Checkpointer(root, run="r")
        ckpt.save(3, state_of(3), metrics={"loss": 0.5})
        hold.wait()
        die(ckpt)
        for _ in range(3):  # dies again before it has saved anything
            ckpt, step, tier, state = resumed(root)
            assert (step, tier) == (3, "memory")
            assert_is(state, 3)
            die(ckpt)
        Checkpointer(root, run="r").close()  # one that fails before it has restored
        ckpt, step, tier, state = resumed(root)
        assert (step, tier) == (3, "memory")
        assert committed_steps(root) == []
        hold.release()
        ckpt.wait()
        ckpt.save(4, state_of(4))
        ckpt.close()
        wait_until_ended(root)
    assert check(root) == {3: [], 4: []}
    assert committed_in(root)[0].metrics == {"loss": 0.5}
    state = state_of(0)
    assert restore_one(root, state) == 4
    assert_is(state, 4)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (2, 1)])
def test_the_number_of_slots_may_change(tmp_path: Path, before: int, after: int) -> None:
    with slow_store(tmp_path) as (root, hold):
        ckpt = Checkpointer(root, run="r", slots=before)
        ckpt.save(3, state_of(3))
        die(ckpt)
        ckpt, step, tier, state = resumed(root, slots=after)
        assert (step, tier) == (3, "memory")
        assert_is(state, 3)
        die(ckpt)
        hold.release()
        ckpt, step, _, state = resumed(root, slots=after)
        assert step == 3
        assert_is(state, 3)
        ckpt.close()
    assert check(root) == {3: []}


def test_another_structure_goes_through_the_store_and_leaves_the_memory(tmp_path: Path) -> None:
    with slow_store(tmp_path) as (root, hold):
        ckpt = Checkpointer(root, run="r")
        ckpt.save(3, state_of(3))
        hold.wait()
        die(ckpt)
        hold.release()
        ckpt = Checkpointer(root, run="r")
        with pytest.raises(StructureError, match="values missing in the checkpoint"):
            ckpt.restore({**state_of(0), "more": 1})
        assert committed_steps(root) == [3]
        ckpt.close()
        ckpt, step, tier, state = resumed(root)
        assert (step, tier) == (3, "memory")
        assert_is(state, 3)
        ckpt.close()
        wait_until_ended(root)


def optimized(kind: Any, lrs: list[float], width: int = 3) -> dict[str, Any]:
    """A group of parameters for each learning rate."""
    module = nn.Sequential(*(nn.Linear(width, width) for _ in range(2)))
    groups = [
        {"params": list(module.parameters())[n :: len(lrs)], "lr": lr} for n, lr in enumerate(lrs)
    ]
    return {"model": module, "optimizer": kind(groups)}


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (partial(optimized, torch.optim.AdamW, [0.1]), "was saved as Adam, but is AdamW here"),
        (partial(optimized, torch.optim.Adam, [0.1, 0.2]), "its groups have other parameters"),
        (partial(optimized, torch.optim.Adam, [0.1], 9), "tensors of another shape or dtype"),
    ],
    ids=["class", "groups", "larger"],
)
def test_what_does_not_fit_is_refused_and_the_memory_stays(
    tmp_path: Path, other: Any, says: str
) -> None:
    """Also where names, shapes and dtypes are the same; and the trainer may go on after that."""
    state = optimized(torch.optim.Adam, [0.1])
    state["model"](torch.ones(3)).sum().backward()
    state["optimizer"].step()
    expected = {name: tensor.clone() for name, tensor in whole(state).items()}
    ckpt = Checkpointer(tmp_path / "store", run="r")
    ckpt.save(1, state)
    ckpt.wait()
    die(ckpt)
    ckpt, live = Checkpointer(tmp_path / "store", run="r"), other()
    before = whole(live)
    for _ in range(2):
        with pytest.raises(StructureError, match=says):
            ckpt.restore(live)
        assert_same(whole(live), before)
    again = optimized(torch.optim.Adam, [0.1])
    assert ckpt.restore(again) == 1
    assert_same(whole(again), expected)
    with pytest.raises(StructureError, match=says):
        ckpt.restore(live)
    ckpt.save(2, live)
    ckpt.close()
    assert committed_steps(tmp_path / "store") == [1, 2]


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_takeover_that_fails_changes_nothing_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fresh: bool
) -> None:
    """The copy is prepared beside it, and is made there if the state was just built."""
    ckpt = Checkpointer(tmp_path, run="r")
    ckpt.save(1, state_of(1))
    ckpt.wait()
    die(ckpt)
    ckpt, state = Checkpointer(tmp_path, run="r"), state_of(0)
    prepared, copied = threading.Event(), threading.Event()
    prepare = memory_restore.prepare_load

    def note_prepared(*args: Any) -> Callable[[], None]:
        copy = prepare(*args)
        prepared.set()

        def note_copied() -> None:
            copy()
            copied.set()

        return note_copied

    def fail(store: Store, run: str) -> TakeoverResult:
        assert prepared.wait(60.0)
        assert copied.wait(60.0 if is_fresh else 0.0) is is_fresh
        raise StoreError("it is out of reach")

    with monkeypatch.context() as patch:
        patch.setattr(memory_restore, "prepare_load", note_prepared)
        patch.setattr(store_restore, "take_over", fail)
        with pytest.raises(StoreError, match="out of reach"):
            ckpt.restore(state, is_fresh=is_fresh)
    if not is_fresh:
        assert_is(state, 0)
    assert ckpt.restore(state, is_fresh=is_fresh) == 1
    assert_is(state, 1)
    ckpt.save(2, state_of(2))
    ckpt.close()
    assert committed_steps(tmp_path) == [1, 2]


def test_four_requests_go_to_the_service_and_the_first_before_the_state_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = optimized(torch.optim.Adam, [0.1])
    state["model"](torch.ones(3)).sum().backward()
    state["optimizer"].step()
    ckpt = Checkpointer(tmp_path, run="r")
    ckpt.save(1, state)
    ckpt.wait()
    die(ckpt)
    ckpt, made = Checkpointer(tmp_path, run="r"), list[str]()
    ask, walk = ServiceConnection.begin_request, LoadTarget.__init__

    def note_asked(self: ServiceConnection, kind: str, **fields: Any) -> Any:
        made.append(kind)
        return ask(self, kind, **fields)

    def note_walked(self: LoadTarget, state: dict[str, Any]) -> None:
        made.append("walk")
        walk(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(ServiceConnection, "begin_request", note_asked)
        patch.setattr(LoadTarget, "__init__", note_walked)
        assert ckpt.restore(state) == 1
    assert made == ["snapshots", "walk", "layout", "join", "resume"]
    ckpt.close()


def test_a_service_that_dies_while_it_is_asked_is_asked_again(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, run="r")
    ckpt.save(1, state_of(1))
    ckpt.wait()
    service = ckpt._client.status()["pid"]
    stop(service)
    answered = ckpt._client.begin_snapshots()
    os.kill(service, signal.SIGKILL)
    assert [found.step for found in answered().found] == [1]
    ckpt.close()


def test_a_block_that_ends_by_an_error_has_handed_its_snapshot_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program may catch the error and create another Checkpointer immediately."""
    with slow_store(tmp_path) as (root, hold):
        state = optimized(torch.optim.Adam, [0.1], 300)
        state["model"](torch.ones(300)).sum().backward()
        state["optimizer"].step()
        ckpt = Checkpointer(root, run="r")
        stager = cast("SlotShipper", ckpt._shipper)._stager
        copy, copied = stager._copy_later, threading.Event()

        def slow(*given: Any) -> None:
            time.sleep(0.5)
            copy(*given)
            copied.set()

        stager._copy_later = slow
        ckpt.save(3, state)
        with pytest.raises(ZeroDivisionError), ckpt:
            raise ZeroDivisionError
        assert copied.is_set()
        assert not caplog.records
        again = optimized(torch.optim.Adam, [0.1], 300)
        with Checkpointer(root, run="r") as ckpt:
            assert ckpt.restore(again) == 3
            assert_same(whole(again), whole(state))
            hold.release()


def test_what_is_refused_from_memory_becomes_durable_all_the_same(tmp_path: Path) -> None:
    with slow_store(tmp_path) as (root, hold):
        state, ckpt = optimized(torch.optim.Adam, [0.1]), Checkpointer(root, run="r")
        state["model"](torch.ones(3)).sum().backward()
        state["optimizer"].step()
        ckpt.save(1, state)
        hold.wait()
        die(ckpt)
        ckpt = Checkpointer(root, run="r")
        with pytest.raises(StructureError, match="in the memory of its nodes"):
            ckpt.restore(optimized(torch.optim.AdamW, [0.1]))
        hold.release()
        with pytest.raises(StructureError, match="does not match checkpoint"):
            ckpt.restore({**optimized(torch.optim.Adam, [0.1]), "more": 1})
        assert committed_steps(root) == [1]
        ckpt.close()


def test_a_newer_checkpoint_in_the_store_counts_more(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, run="r")
    ckpt.save(1, state_of(1))
    ckpt.wait()
    die(ckpt)
    with elsewhere():
        other, step, tier, _ = resumed(tmp_path)
        assert (step, tier) == (1, "store")
        other.save(2, state_of(2))
        other.close()
    ckpt, step, tier, state = resumed(tmp_path)
    assert (step, tier) == (2, "store")
    assert_is(state, 2)
    ckpt.close()


def test_a_checkpoint_that_was_removed_does_not_come_back_from_memory(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, run="r")
    for saved in (1, 2):
        ckpt.save(saved, state_of(saved))
        ckpt.wait()
    die(ckpt)
    (tmp_path / list_checkpoints(tmp_path)[-1].key).unlink()
    ckpt, step, _, state = resumed(tmp_path)
    assert step == 1
    assert_is(state, 1)
    ckpt.close()


def test_one_whose_manifest_is_damaged_does(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path, run="r")
    for saved in (1, 2):
        ckpt.save(saved, state_of(saved))
        ckpt.wait()
    die(ckpt)
    (tmp_path / list_checkpoints(tmp_path)[-1].key).write_bytes(b"")
    ckpt, step, tier, state = resumed(tmp_path)
    assert (step, tier) == (2, "memory")
    assert_is(state, 2)
    ckpt.close()
    whole = [info for info in list_checkpoints(tmp_path) if info.state == "committed"]
    assert [info.step for info in whole] == [1, 2], "it was saved again"


def test_a_trainer_whose_place_was_taken_is_told_so(tmp_path: Path) -> None:
    with slow_store(tmp_path) as (root, hold):
        old = Checkpointer(root, run="r")
        old.save(1, state_of(1))
        hold.wait()
        new = Checkpointer(root, run="r")
        with pytest.raises(SaveError, match="another process has joined"):
            old.wait()
        old.save(2, state_of(2))
        with pytest.raises(SaveError, match="step 2: rank 0: "):
            old.wait()
        old.close()
        hold.release()
        new.save(3, state_of(3))
        new.close()
    assert 3 in committed_steps(root)


# --- several ranks ------------------------------------------------------------------------------


def replicated(step: int) -> dict[str, Any]:
    """As under DDP: the same on all ranks. What nothing compresses."""
    tensors = {
        f"t{i}": torch.randint(0, 256, (size,), dtype=torch.uint8, generator=seeded(step * 100 + i))
        for i, size in enumerate([300_000, 1_000_000, 7, 200_000])
    }
    tensors["flags"] = torch.arange(11) % 3 == step % 3
    tensors["floats"] = torch.randn(1001, generator=seeded(step))
    tensors["scalar"] = torch.tensor(float(step), dtype=torch.float64)
    return {"tensors": tensors, "step": step}


def assert_same_tensors(state: dict[str, Any], step: int) -> None:
    expected = replicated(step)
    assert state["step"] == step
    for name, tensor in expected["tensors"].items():
        assert torch.equal(state["tensors"][name], tensor), name


def save_and_die(rank: int, tmp: Path) -> None:
    state = replicated(0)
    ckpt = Checkpointer(tmp / "store", run="r")
    step = ckpt.restore(state) or 0
    ckpt.save(step + 1, replicated(step + 1))
    dist.barrier()
    die(ckpt)


def restore_somewhere(rank: int, tmp: Path) -> tuple[int | None, str]:
    state, events = replicated(0), Recorder()
    ckpt = Checkpointer(tmp / "store", run="r", on_event=events)
    step = ckpt.restore(state)
    assert step is not None
    assert_same_tensors(state, step)
    dist.barrier()
    die(ckpt)
    return step, dict(events)["checkpoint_restored"]["tier"] if rank == 0 else ""


def test_other_numbers_of_ranks_go_on_from_what_was_in_memory(tmp_path: Path) -> None:
    run_world(2, save_and_die, tmp_path)
    assert run_world(2, restore_somewhere, tmp_path)[0] == (1, "memory")
    assert run_world(1, restore_somewhere, tmp_path)[0] == (1, "store")
    run_world(1, save_and_die, tmp_path)
    assert run_world(1, restore_somewhere, tmp_path)[0] == (2, "memory")
    assert run_world(2, restore_somewhere, tmp_path)[0] == (2, "store")
    assert not any(check(tmp_path / "store").values())


def save_on_two_nodes(rank: int, tmp: Path, is_stored: bool) -> None:
    """Until the part of the second is in the store, or is about to be written."""
    with elsewhere() if rank else nullcontext():
        ckpt = Checkpointer(tmp / "store", run="r")
        ckpt.restore(replicated(0))
        ckpt.save(3, replicated(3))
        while rank and is_stored and not list((tmp / "store").glob("runs/r/parts/*.00001")):
            time.sleep(0.05)
        dist.barrier()
        die(ckpt)


def restore_on_them(rank: int, tmp: Path, await_unseen: bool) -> tuple[int | None, str]:
    state, events = replicated(0), Recorder()
    forever = mock.patch.object(memory_restore, "UNSEEN_S", 3600.0)
    with elsewhere() if rank else nullcontext(), forever:
        ckpt = Checkpointer(tmp / "store", run="r", on_event=events)
        if not rank:
            (tmp / "gate").unlink()
        step = ckpt.restore(state, await_unseen=await_unseen)
        die(ckpt)
    return step, dict(events).get("checkpoint_restored", {}).get("tier", "")


@pytest.mark.parametrize("is_stored", [False, True])
def test_what_is_nowhere_is_not_waited_for_and_what_is_stored_is(
    tmp_path: Path, is_stored: bool
) -> None:
    with slow_store(tmp_path) as (root, hold), ExitStack() as stack:
        with elsewhere():
            if not is_stored:
                stack.enter_context(sabotaged(root, IMPATIENT + hold.sabotage(WRITE_PART)))
        run_world(2, partial(save_on_two_nodes, is_stored=is_stored), tmp_path)
        hold.wait()
        with elsewhere():
            kill_here(root)
        found = run_world(2, partial(restore_on_them, await_unseen=False), tmp_path)
    assert found[0] == ((3, "store") if is_stored else (None, ""))


def test_what_only_lacks_its_commit_is_gone_on_from_at_once(tmp_path: Path) -> None:
    """The node that was to commit it is lost."""
    root, hold = tmp_path / "store", Hold(tmp_path)
    hold.close()
    with sabotaged(root, hold.sabotage(COMMIT)):
        run_world(2, partial(save_on_two_nodes, is_stored=True), tmp_path)
        hold.wait()
        kill_here(root)
        found = run_world(2, partial(restore_on_them, await_unseen=True), tmp_path)
    assert found[0] == (3, "store")


def read_once(rank: int, tmp: Path) -> tuple[int, int]:
    """Bytes that this rank reads from packs in a restore from the store, and that it holds."""
    root, read = tmp / f"store-{dist.get_world_size()}", 0
    ckpt = Checkpointer(root, run="r", compress=False)
    ckpt.save(1, replicated(1))
    ckpt.close()
    read_into = PosixStorage.read_into

    def counted(storage: PosixStorage, key: str, start: int, into: memoryview) -> None:
        nonlocal read
        if key.startswith("packs/"):
            read += len(into)
        read_into(storage, key, start, into)

    ckpt, state = Checkpointer(root, run="r"), replicated(0)
    with mock.patch.object(PosixStorage, "read_into", counted):
        assert ckpt.restore(state) == 1
    assert_same_tensors(state, 1)
    ckpt.close()
    return read, sum(tensor.nbytes for tensor in state["tensors"].values())


def test_what_all_ranks_hold_is_read_once_by_all_together(tmp_path: Path) -> None:
    for world_size, answers in run_worlds([2, 4], read_once, tmp_path).items():
        size = answers[0][1]
        read = [count for count, _ in answers]
        assert size <= sum(read) < 1.1 * size, "gaps between what is wanted may be read, too"
        assert max(read) < 1.5 * size / world_size, "divided about equally"


def share_from_memory(rank: int, tmp: Path) -> int:
    """Bytes that this rank has staged."""
    events, ckpt = Recorder(), Checkpointer(tmp / f"store-{dist.get_world_size()}", run="r")
    ckpt._events._on_event = events
    ckpt.save(1, replicated(1))
    ckpt.wait()
    die(ckpt)
    dist.barrier()
    ckpt = Checkpointer(tmp / f"store-{dist.get_world_size()}", run="r")
    ckpt._events._on_event = events
    state = replicated(0)
    step = ckpt.restore(state) or 0
    tier = dict(events)["checkpoint_restored"]["tier"]
    assert (step, tier) == (1, "memory")
    assert_same_tensors(state, 1)
    ckpt.close()
    return int(dict(events)["checkpoint_staged"]["bytes"])


def test_what_all_ranks_hold_is_staged_once_and_exchanged(tmp_path: Path) -> None:
    sizes = [tensor.nbytes for tensor in replicated(1)["tensors"].values()]
    for world_size, staged in run_worlds([2, 4], share_from_memory, tmp_path).items():
        assert sum(staged) == sum(sizes)
        assert len(staged) == world_size
        assert max(staged) == max(sizes), "a tensor is one rank's"


def mix_from_memory(rank: int, tmp: Path) -> None:
    """Tensors of many sizes, which ranks save whole: none has an equal share of the bytes."""

    def made(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        layers = [nn.Linear(n, 3 * n % 7 + 1) for n in range(2, 9)]
        return {"model": nn.ModuleList(layers), "norm": nn.BatchNorm1d(5)}

    state, ckpt = made(1), Checkpointer(tmp / "store", run="r")
    ckpt.save(1, state)
    ckpt.wait()
    die(ckpt)
    dist.barrier()
    other, events = made(2), Recorder()
    ckpt = Checkpointer(tmp / "store", run="r")
    ckpt._events._on_event = events
    assert ckpt.restore(other) == 1
    assert dict(events)["checkpoint_restored"]["tier"] == "memory"
    ckpt.close()
    for name in state:
        assert_same(other[name].state_dict(), state[name].state_dict())


@pytest.mark.parametrize("world_size", [2, 3])
def test_what_one_rank_saves_all_have_again_from_memory(tmp_path: Path, world_size: int) -> None:
    run_world(world_size, mix_from_memory, tmp_path)


def shard_from_memory(rank: int, tmp: Path) -> None:
    state, events = sharded(1), Recorder()
    ckpt = Checkpointer(tmp / "store", run="r")
    ckpt.restore(state)
    train(state)
    ckpt.save(1, state)
    expected = whole(state)
    train(state)  # what is copied meanwhile does not see it
    die(ckpt)
    dist.barrier()
    other = sharded(2)
    ckpt = Checkpointer(tmp / "store", run="r")
    ckpt._events._on_event = events
    assert ckpt.restore(other) == 1
    assert dict(events)["checkpoint_restored"]["tier"] == "memory"
    assert_same(whole(other), expected)
    assert other["optimizer"].param_groups[0]["lr"] == 0.01
    ckpt.wait()  # a save of step 2 may take the place of the restored one
    train(other)
    ckpt.save(2, other)
    ckpt.close()


def sharded(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01 / seed)}


def train(state: dict[str, Any]) -> None:
    state["model"](torch.randn(4, 7, generator=seeded(7))).square().mean().backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def test_shards_are_restored_from_memory(tmp_path: Path) -> None:
    run_world(2, shard_from_memory, tmp_path)
    assert check(tmp_path / "store") == {1: [], 2: []}
