"""A dcp.save to a store that fails leaves nothing behind, and says what cannot be saved."""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from checkpointing import Last, SaveError, Store
from checkpointing.format.values.tagged_types import MAX_BYTES
from checkpointing.interop.dcp import StoreWriter
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.sessions.run_takeover import take_over
from tests.integration.rank_worlds import meet, run_world
from tests.unit.checkpointing.plain import Undeclared

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


_threads_before: set[threading.Thread] = set()  # that tests before this one have left


@pytest.fixture
def store(tmp_path: Path) -> Store:
    _threads_before.clear()
    _threads_before.update(threading.enumerate())
    return Store.open(tmp_path / "store", create=True)


class BadGlobalPlan(DefaultSavePlanner):
    def create_global_plan(self, all_plans: list[SavePlan]) -> Any:
        raise RuntimeError("no global plan")


class BadLastPlan(DefaultSavePlanner):
    """Fails after the save was announced, where the writer is not asked."""

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        raise RuntimeError("no last plan")


def holds_nothing(store: Store) -> bool:
    mine = set(threading.enumerate()) - _threads_before
    held = [thread for thread in mine if thread.name.startswith(("lease-", "dcp-save-"))]
    return not held and store.storage.list("leases/") == []


def assert_let_go(store: Store) -> None:
    """Fails by the time limit of the test if it never is."""
    while not holds_nothing(store):
        time.sleep(0.01)


def failing(store: Store) -> dict[str, Callable[[StoreWriter], object]]:
    good, bad = {"t": torch.ones(3)}, {"t": torch.ones(3), "bad": io.BytesIO(b"x")}
    return {
        "value": lambda w: dcp_save(bad, storage_writer=w),
        "global plan": lambda w: dcp_save(good, storage_writer=w, planner=BadGlobalPlan()),
        "last plan": lambda w: dcp_save(good, storage_writer=w, planner=BadLastPlan()),
        "in a thread": lambda w: in_a_thread(bad, w),
    }


def in_a_thread(state: dict[str, Any], writer: StoreWriter) -> None:
    future = async_save(state, storage_writer=writer, no_dist=True)
    assert isinstance(future, Future)
    future.result()


@pytest.mark.parametrize("how", ["value", "global plan", "last plan", "in a thread"])
def test_a_failed_save_holds_nothing(store: Store, how: str) -> None:
    writer = StoreWriter(store, "run", 1)
    with pytest.raises(CheckpointException):
        failing(store)[how](writer)
    assert_let_go(store)
    for step in (2, 3, 4):
        state = {"t": torch.full((400, 400), float(step))}
        dcp_save(state, storage_writer=StoreWriter(store, "run", step))
        assert_let_go(store)
    for _ in range(3):
        prune(store, "run", [Last(1)], grace_s=0)
    assert store.storage.list("tombs/") == []
    assert len(store.storage.list("packs/")) == 1
    assert "/parts/" not in str([entry.key for entry in store.storage.list("runs/")])
    dcp_save({"t": torch.ones(3)}, storage_writer=writer)  # the same one once more


def test_a_save_that_may_not_begin_holds_nothing(store: Store, tmp_path: Path) -> None:
    dcp_save({"t": torch.ones(3)}, storage_writer=StoreWriter(store, "run", 1))
    take_over(Store.open(tmp_path / "store"), "run")
    writer = StoreWriter(store, "run", 2)
    with pytest.raises(CheckpointException, match="another process took over the run"):
        dcp_save({"t": torch.ones(3)}, storage_writer=writer)
    assert_let_go(store)


def test_a_write_that_fails_holds_nothing(store: Store, tmp_path: Path) -> None:
    packs = tmp_path / "store" / "packs"
    packs.touch()  # where a folder is needed
    writer = StoreWriter(store, "run", 1)
    with pytest.raises(CheckpointException, match="packs"):
        dcp_save({"t": torch.ones(3)}, storage_writer=writer)
    assert_let_go(store)
    packs.unlink()
    dcp_save({"t": torch.ones(3)}, storage_writer=writer)


def one_rank_fails(rank: int, tmp: Path) -> bool:
    """Rank 1 has a value that cannot be saved; rank 0 has the lease, and its writer is not told."""
    store = Store.open(tmp / "store")
    writer = StoreWriter(store, "run", 1)
    bad = {"bad": io.BytesIO(b"x")} if rank == 1 else {}
    try:
        dcp_save({"t": torch.ones(3), **bad}, storage_writer=writer)
    except CheckpointException:
        assert_let_go(store)
        meet(tmp, "let-go", [2])
    return holds_nothing(store)


def test_a_save_that_fails_on_another_rank_holds_nothing(store: Store, tmp_path: Path) -> None:
    assert run_world(2, one_rank_fails, tmp_path) == [True, True]


WRONG: dict[str, tuple[Any, str]] = {
    "file": (io.BytesIO(b"x"), r"cannot save _io\.BytesIO at 'a/k'.*a state holds tensors"),
    "objects": (np.zeros(2, object), r"cannot save the numpy array of dtype object at 'a/k'"),
    "class": ([Undeclared(1)], r"cannot save .*Undeclared at 'a/k/0': register the class"),
    "function": (lambda: 0, r"cannot save builtins\.function at 'a/k'"),
    "deque": ([1, deque([2])], r"cannot save collections\.deque at 'a/k/1'"),
    "tuple": (
        (1, {"x": [torch.ones(2).to_sparse()]}),
        r"cannot save the tensor at 'a/k/1/x/0': .* put it into a dict or list of the state",
    ),
    "large": (
        (torch.ones(MAX_BYTES // 4 + 1),),
        r"cannot save the 16777220 bytes at 'a/k/0' as a value: .* that a dict or list of the",
    ),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_a_refusal_says_what_and_where(store: Store, what: str) -> None:
    thing, words = WRONG[what]
    with pytest.raises(CheckpointException, match=words) as caught:
        dcp_save({"a": {"k": thing}}, storage_writer=StoreWriter(store, "run", 1))
    (error,) = [inner for inner, _ in caught.value.failures.values()]
    assert type(error) is SaveError
    assert "torch.load" not in str(error)
