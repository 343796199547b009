"""Checkpoints of several ranks, in real processes over gloo: FSDP2, resharding, trouble."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import re
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from checkpointing import (
    Checkpointer,
    CheckpointError,
    Minutes,
    SaveError,
    Steps,
    StructureError,
    list_checkpoints,
    verify,
)
from checkpointing.ranks import rank_group
from tests.integration.checkpoint.store_damage import (
    check,
    committed_in,
    cut_into_groups,
    damage_newest,
    packs_of,
)
from tests.integration.rank_worlds import Recorder, assert_same, run_world, seeded, whole
from tests.integration.service.service_nodes import until


class Net(nn.Module):
    """Sizes that no world size divides, a buffer, and tied weights would all be cut unevenly."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner = nn.Linear(7, 5)
        self.outer = nn.Linear(5, 1)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.outer(self.inner(x).relu())
        return out


def make_state(seed: int, shard: bool) -> dict[str, Any]:
    model = Net(seed)
    if shard:
        fully_shard(model.inner)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {"model": model, "optimizer": optimizer, "progress": {"epoch": 0, "best": float("inf")}}


def train(state: dict[str, Any], steps: int) -> None:
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        state["model"](torch.randn(4, 7, generator=generator)).square().mean().backward()
        state["optimizer"].step()
        state["optimizer"].zero_grad()
        state["model"].seen += 1
    state["progress"]["epoch"] += steps


# --- saved on two ranks, restored on two, one and three ----------------------------------------


def save_sharded(rank: int, tmp: Path) -> dict[str, torch.Tensor]:
    state = make_state(seed=1, shard=True)
    events = Recorder()
    ckpt = Checkpointer(tmp / "store", run="r", every=Steps(2), on_event=events)
    assert ckpt.restore(state) is None
    assert not state["optimizer"].state, "asking for a checkpoint must not step the optimizer"
    for step in range(1, 5):
        train(state, 1)
        if ckpt.due(step):
            ckpt.save(step, state, metrics={"loss": 1.0 / step})
            if step < 4:
                ckpt.wait()
    expected = whole(state)
    train(state, 1)  # the staged copy must not see this
    ckpt.close()
    told = [fields for kind, fields in events if kind == "checkpoint_committed"]
    # what is replicated is saved once: there are exactly as many bytes as in the whole state
    whole_bytes = sum(t.nbytes for t in expected.values())
    assert [f["bytes"] for f in told] == ([whole_bytes] * 2 if rank == 0 else [])
    return expected


def restore_sharded(rank: int, tmp: Path) -> tuple[int | None, dict[str, torch.Tensor], Any]:
    state = make_state(seed=2, shard=True)
    events = Recorder()
    ckpt = Checkpointer((tmp / "store").as_uri(), run="r", on_event=events)
    step = ckpt.restore(state)
    restored = whole(state)
    for reading in (fields for kind, fields in events if kind == "manifest_read"):
        assert (reading["readers"], reading["ranks"]) == (1, dist.get_world_size())
        assert reading.get("reason") is None
    if rank == 0 and dist.get_world_size() == 3:  # not from memory
        assert "manifest_read" in events.kinds()
    train(state, 1)  # what was restored can be trained on
    ckpt.close()
    return step, restored, state["progress"]


def test_fsdp2_state_is_bit_identical_on_any_world_size(tmp_path: Path) -> None:
    expected = run_world(2, save_sharded, tmp_path)[0]
    assert check(tmp_path / "store") == {2: [], 4: []}
    infos = list_checkpoints(tmp_path / "store")
    assert [info.world_size for info in infos] == [2, 2]
    assert infos[-1].raw_bytes == sum(t.nbytes for t in expected.values())

    for world_size in (2, 3):
        if world_size == 3:
            cut_into_groups(tmp_path / "store")
        for step, restored, progress in run_world(world_size, restore_sharded, tmp_path):
            assert step == 4
            assert_same(restored, expected)
            assert progress == {"epoch": 5, "best": float("inf")}

    state = make_state(seed=3, shard=False)  # one process, no process group
    ckpt = Checkpointer(tmp_path / "store", run="r")
    assert ckpt.restore(state) == 4
    assert_same(whole(state), expected)
    ckpt.close()


# --- what goes wrong on one rank is known on all ------------------------------------------------


def on_rank0(rank: int, action: Callable[[], object]) -> None:
    dist.barrier()
    if rank == 0:
        action()
    dist.barrier()


@contextlib.contextmanager
def no_room(pid: int) -> Iterator[None]:
    """Every write of the process beyond 64 bytes of a file fails, as on a full disk."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def trouble(rank: int, tmp: Path) -> None:
    os.environ["HPCKIT_NODE"] = f"node {rank}"  # each with a service of its own
    store = tmp / "store"
    state = make_state(seed=1, shard=True)
    events = Recorder()
    ckpt = Checkpointer(store, run="r", on_event=events)
    saved = {}
    for step in (1, 2):
        train(state, 1)
        ckpt.save(step, state)
        ckpt.wait()
        saved[step] = whole(state)
    rank1_cannot_write(rank, ckpt, state, events, store)
    ckpt.close()
    damage_is_passed_over(rank, state, saved, store)
    other_structure_is_refused(store)
    truncated_manifests_leave_nothing(rank, state, store)


def rank1_cannot_write(
    rank: int, ckpt: Checkpointer, state: dict[str, Any], events: Recorder, store: Path
) -> None:
    train(state, 1)
    pid = int(ckpt._client.status()["pid"])
    with no_room(pid) if rank == 1 else contextlib.nullcontext():
        ckpt.save(3, state)
        with pytest.raises(SaveError, match=r"step 3.*rank 1.*packs/.*File too large"):
            ckpt.wait()
        ckpt.wait()  # said once
        if rank == 0:
            assert "checkpoint_failed" not in events.kinds(), "its own node can write"
            assert check(store) == {1: [], 2: []}
        dist.barrier()
    train(state, 1)  # the staged copy does not see this
    save_in_the_end(ckpt, state, 3)


def save_in_the_end(ckpt: Checkpointer, state: dict[str, Any], step: int) -> None:
    """What went wrong before may be told meanwhile."""
    for _ in range(20):
        ckpt.save(step, state)
        with contextlib.suppress(SaveError):
            ckpt.wait()
            return
    raise AssertionError(f"step {step} cannot be saved")


def damage_is_passed_over(
    rank: int,
    state: dict[str, Any],
    saved: dict[int, dict[str, torch.Tensor]],
    store: Path,
) -> None:
    newest = committed_in(store)[-1]
    assert newest.step == 3
    on_rank0(rank, lambda: damage_newest(store))
    assert verify(store, newest) != []
    train(state, 1)
    events = Recorder()
    other = Checkpointer(store, run="r", on_event=events)
    assert other.restore(state) == 2
    assert_same(whole(state), saved[2])
    if rank == 0:
        assert events.kinds() == ["checkpoint_skipped", "manifest_read", "checkpoint_restored"]
        assert events[0][1]["step"] == 3
        assert "packs/" in events[0][1]["reason"]
    else:
        assert events == []
    other.close()


def other_structure_is_refused(store: Path) -> None:
    ckpt = Checkpointer(store, run="r")
    state = make_state(seed=2, shard=True)
    before = whole({**state, "optimizer": mock.Mock(state=mock.MagicMock())})
    state["model"].extra = nn.Parameter(torch.zeros(2))
    state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1)
    with pytest.raises(StructureError) as caught:
        ckpt.restore(state)
    assert "tensors missing in the checkpoint (1):\n    model/extra" in str(caught.value)
    assert "optimizer 'optimizer' was saved as AdamW, but is SGD here" in str(caught.value)
    after = whole({**state, "optimizer": mock.Mock(state=mock.MagicMock())})
    assert_same({k: v for k, v in after.items() if k in before}, before)
    ckpt.close()


def truncated_manifests_leave_nothing(rank: int, state: dict[str, Any], store: Path) -> None:
    infos = committed_in(store)
    ckpt = Checkpointer(store, run="r")
    on_rank0(rank, lambda: os.truncate(store / infos[1].key, 100))
    assert ckpt.restore(state) == 1
    first, *_ = packs_of(store, infos[0])
    on_rank0(rank, first.unlink)
    with pytest.raises(CheckpointError) as caught:
        ckpt.restore(state)
    assert all(info.id in str(caught.value) for info in infos)
    ckpt.close()


def test_trouble_on_one_rank_is_known_on_all(tmp_path: Path) -> None:
    run_world(2, trouble, tmp_path)


# --- who saves what -----------------------------------------------------------------------------


def save_replicated(rank: int, tmp: Path) -> list[dict[str, Any]]:
    """Eight tensors of one size, the same everywhere, stored as they are."""
    state = {f"t{i}": torch.rand(10_000, generator=seeded(i)) for i in range(8)}
    events = Recorder()
    ckpt = Checkpointer(tmp / "store", run="r", compress=False, on_event=events)
    ckpt.save(1, {**state, f"only on {rank}": torch.full((3,), 1.0)})
    ckpt.wait()
    ckpt.save(2, state)
    ckpt.close()
    return [fields for kind, fields in events if kind == "checkpoint_committed"]


def test_replicated_tensors_are_saved_once_and_spread_over_ranks(tmp_path: Path) -> None:
    told, _ = run_world(2, save_replicated, tmp_path)
    store = tmp_path / "store"
    assert check(store) == {1: [], 2: []}
    first, second = list_checkpoints(store)
    assert [fields["bytes"] for fields in told] == [8 * 40_000 + 24, 8 * 40_000]
    assert (first.raw_bytes, second.raw_bytes) == (8 * 40_000 + 24, 8 * 40_000)
    sizes = sorted(pack.stat().st_size for pack in packs_of(store, first))
    assert [size // 160_000 for size in sizes] == [1, 1], "four tensors in a pack of each rank"
    assert told[1]["new_bytes"] == 0
    assert packs_of(store, second) == packs_of(store, first)


# --- a structure that changes -------------------------------------------------------------------


def change_structures(rank: int, tmp: Path) -> None:
    state = make_state(seed=1, shard=True)
    ckpt = Checkpointer(tmp / "store", run="r")
    for step in (1, 2, 3, 4):
        if step > 1:
            train(state, 1)  # the optimizer has no state before
        if step > 2:
            state["added"] = torch.full((40_000 * step,), float(step))
        ckpt.save(step, state)
        ckpt.wait()
    expected = whole(state)
    ckpt.close()
    other: dict[str, Any] = {**make_state(seed=2, shard=True), "added": torch.zeros(160_000)}
    ckpt = Checkpointer(tmp / "store", run="r")
    assert ckpt.restore(other) == 4
    assert_same(whole(other), expected)
    assert torch.equal(other["added"], state["added"])
    ckpt.close()


def change_alone(rank: int, tmp: Path) -> None:
    ckpt = Checkpointer(tmp / "alone", run="r")
    ckpt.save(1, {"w": torch.zeros(3)})
    ckpt.wait()
    # only now: a structure that is the same on all ranks waits for the slowest of them
    assert ckpt._ranks.structures is not None
    ckpt._ranks.structures.timeout_s = 2.0
    state = {"w": torch.ones(3), "v": torch.ones(3)} if rank == 1 else {"w": torch.ones(3)}
    if rank == 1:
        with pytest.raises(SaveError, match=r"rank 1: its state has other tensors or values"):
            ckpt.save(2, state)
    else:
        ckpt.save(2, state)
        assert not ckpt.due(3), "a vote is not mixed up with what rank 1 sends"
    dist.barrier()
    if rank == 1:
        assert not ckpt.due(3)
    with contextlib.suppress(SaveError):
        ckpt.close()


def test_a_structure_may_change_on_all_ranks_at_once(tmp_path: Path) -> None:
    run_world(2, change_structures, tmp_path)
    assert check(tmp_path / "store") == {1: [], 2: [], 3: [], 4: []}


def test_one_that_changes_on_a_rank_alone_is_refused_there(tmp_path: Path) -> None:
    run_world(2, change_alone, tmp_path)
    assert check(tmp_path / "alone") == {1: []}


# --- a rank that fails in a restore -------------------------------------------------------------


class Picky:
    """Refuses what it gets on rank 1, as long as it is told to."""

    def __init__(self, rank: int) -> None:
        self.refuses = rank == 1
        self.held: dict[str, Any] = {"w": torch.zeros(3), "n": 0}

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.refuses:
            raise KeyError("I do not want it")
        self.held = state


def fail_alone(rank: int, tmp: Path) -> None:
    picky = Picky(rank)
    ckpt = Checkpointer(tmp / "store", run="r")
    ckpt.save(1, {"picky": picky})
    ckpt.wait()
    own, theirs = (KeyError, TypeError) if rank == 1 else (CheckpointError, CheckpointError)
    with pytest.raises(own, match="I do not want it"):
        ckpt.restore({"picky": picky})
    with pytest.raises(theirs, match="cannot save"):
        ckpt.restore({"picky": object() if rank == 1 else picky})
    picky.refuses = False
    picky.held["w"] += 1
    assert ckpt.restore({"picky": picky}) == 1
    assert torch.equal(picky.held["w"], torch.zeros(3))
    ckpt.close()


def test_a_rank_that_fails_in_a_restore_stops_all(tmp_path: Path) -> None:
    run_world(2, fail_alone, tmp_path)


# --- agreement ----------------------------------------------------------------------------------


def vote_by_different_clocks(rank: int, tmp: Path) -> list[bool]:
    """Rank 1's clock runs three times as fast; answers at 30 calls, 20 s apart on rank 0."""
    clock_s = [0.0]
    state = {"w": torch.zeros(3)}
    answers = []
    with mock.patch.object(time, "monotonic", side_effect=lambda: clock_s[0]):
        ckpt = Checkpointer(tmp / "store", run="r", every=Minutes(3))
        for step in range(30):
            clock_s[0] += 20.0 if rank == 0 else 60.0
            answers.append(ckpt.due(step))
            if answers[-1]:
                ckpt.save(step, state)
                ckpt.wait()
        ckpt.close()
    return answers


def test_minutes_say_the_same_on_every_rank(tmp_path: Path) -> None:
    first, second = run_world(2, vote_by_different_clocks, tmp_path)
    assert first == second
    # the fastest clock decides: three of its minutes are three calls, and the answer is a call late
    assert [step for step, yes in enumerate(first) if yes] == list(range(3, 30, 4))


class Warned(logging.Handler):
    """Makes a file as soon as there is a warning with this text."""

    def __init__(self, text: str, mark: Path) -> None:
        super().__init__(logging.WARNING)
        self._text, self._mark = text, mark

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self._mark.touch()


def calls_of_one_rank(rank: int, tmp: Path) -> None:
    """Rank 1 makes each call only after rank 0 has warned that it waits in it."""
    rank_group.WAIT_WARNING_S = 0.1

    def await_warning(text: str) -> None:
        mark = tmp / text
        if rank == 0:
            logging.getLogger("checkpointing").addHandler(Warned(f"rank 0: {text}", mark))
        else:
            until(mark.exists, text)

    await_warning("creating a Checkpointer")
    with Checkpointer(tmp / "store", run="r") as ckpt:
        await_warning("restoring")
        ckpt.restore({"w": torch.ones(10)})
        await_warning("saving")
        ckpt.save(1, {"w": torch.ones(20)})  # not what was restored


def saves_of_one_rank(rank: int, tmp: Path, per_node: int) -> list[str]:
    """Only rank 0 saves, until it is told what is wrong; then both do."""
    os.environ["HPCKIT_NODE"] = f"node{rank // per_node}"
    events, mark, state = Recorder(), tmp / "skipped", {"w": torch.ones(10)}
    ckpt = Checkpointer(tmp / "store", run="r", on_event=events)
    ckpt.restore(state)
    reasons: list[str] = []
    for step in itertools.count(1):
        if rank == 1:
            until(mark.exists, "a save that is skipped for the other rank")
            break
        ckpt.save(step, state)
        reasons = [fields["reason"] for kind, fields in list(events) if kind == "save_skipped"]
        if any("waits for" in reason for reason in reasons):
            mark.touch()
            break
        time.sleep(0.05)
    ckpt.save(10**6, state, is_last=True)
    ckpt.close()
    return reasons


@pytest.mark.parametrize(
    ("per_node", "awaited"), [(2, "rank 1"), (1, "1 of the ranks of other nodes")]
)
def test_a_save_of_one_rank_is_told_apart_from_a_slow_store(
    tmp_path: Path, per_node: int, awaited: str
) -> None:
    worker = functools.partial(saves_of_one_rank, per_node=per_node)
    reason = run_world(2, worker, tmp_path)[0][-1]
    assert re.fullmatch(
        r"no slot is free for another snapshot: the save of step \d+ waits for "
        + re.escape(awaited)
        + r"; every rank has to call save\(\), at the same steps",
        reason,
    )
    assert check(tmp_path / "store") == {10**6: []}


def test_a_rank_that_waits_for_calls_of_others_says_so(tmp_path: Path) -> None:
    run_world(2, calls_of_one_rank, tmp_path)
    assert check(tmp_path / "store") == {1: []}
