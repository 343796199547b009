"""States that pass through buckets: the same checkpoints by less memory, or none at all."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from checkpointing import Checkpointer, SaveError, StageError, Store
from checkpointing.save.bucket_flow_control import BucketFlowControl
from checkpointing.service.config import Budget
from checkpointing.staging import host_memory
from checkpointing.staging.host_memory import FreeMemory
from checkpointing.store.catalog import committed
from tests.forkserver import fork_server
from tests.integration.checkpoint.single_process_saves import die, restore_one
from tests.integration.checkpoint.store_damage import check, committed_in
from tests.integration.rank_worlds import Recorder, seeded
from tests.integration.service.running_services import Hold, pid_of, sabotaged, wait_until_ended
from tests.integration.service.service_nodes import until

ROWS = 3400  # of 4000 bytes: several times what the buckets hold
READING = ("registry.bucket_stream", "_piece")
_BREAKS = """
import os
from checkpointing.errors import StoreError
from checkpointing.storage.posix.posix_storage import PosixStorage
put = PosixStorage.put

def broken(self, key, parts):
    if key.startswith("packs/") and os.path.exists({switch!r}):
        raise StoreError("the disk is gone")
    put(self, key, parts)

PosixStorage.put = broken
"""


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums come to other bits on other numbers of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def state_of(step: int) -> dict[str, Any]:
    """A model with its optimizer, buffers and values; every kind of piece."""
    torch.manual_seed(step)
    model = nn.Sequential(nn.Linear(400, 200), nn.BatchNorm1d(200), nn.Linear(200, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with one_thread():  # the same bits in each process
        model(torch.randn(4, 400)).square().mean().backward()
        optimizer.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "table": torch.randn(ROWS, 1000, generator=seeded(step)),
        "turned": torch.randn(300, 400, generator=seeded(step)).t(),
        "flags": torch.randn(1001, generator=seeded(step)) > 0,
        "none": torch.empty(0, 4),
        "scalar": torch.tensor(float(step), dtype=torch.float64),
        "step": step,
    }


def assert_is(state: dict[str, Any], step: int) -> None:
    expected = state_of(step)
    for name in ("table", "turned", "flags", "scalar"):
        assert torch.equal(state[name], expected[name]), name
    for name, tensor in expected["model"].state_dict().items():
        assert torch.equal(state["model"].state_dict()[name], tensor), name
    assert state["step"] == step


def through(root: Path, **options: Any) -> tuple[Checkpointer, Recorder]:
    events = Recorder()
    return Checkpointer(root, run="r", staging="buckets", on_event=events, **options), events


def chunks_of(root: Path, step: int) -> dict[str, dict[str, tuple[bytes, str]]]:
    """By tensor and box: the chunk's id, and whether it is relative to another one."""
    store = Store.open(root)
    (found,) = [one for one in committed(store)[0] if one.stored.save.step == step]
    tables = found.document.content().items.values()
    return {
        name: {str(box): (c.id, "delta" if c.base else "alone") for box, c in chunks.items()}
        for table in tables
        for name, chunks in table.chunks.items()
    }


def new_bytes(events: Recorder) -> list[int]:
    return [fields["new_bytes"] for kind, fields in events if kind == "checkpoint_committed"]


@contextmanager
def blocked(tmp: Path, root: Path) -> Iterator[Hold]:
    """The node's service takes a first bucket in its hands, and comes no further."""
    hold = Hold(tmp)
    with sabotaged(root, hold.sabotage(READING)):
        yield hold


def kill_when_it_reads(hold: Hold, root: Path) -> None:
    hold.wait()
    os.kill(pid_of(root), signal.SIGKILL)


def test_the_same_state_by_either_way_is_the_same_chunks(tmp_path: Path) -> None:
    for step, staging in enumerate(["buckets", "slots", "buckets"]):
        events = Recorder()
        ckpt = Checkpointer(tmp_path, run="r", staging=staging, on_event=events)  # type: ignore[call-overload]
        ckpt.save(step, state_of(7), metrics={"loss": 0.5})
        ckpt.close()
        assert (new_bytes(events) == [0]) == (step > 0), "only the first one stores anything"
    wait_until_ended(tmp_path)
    assert check(tmp_path) == {0: [], 1: [], 2: []}
    first = chunks_of(tmp_path, 0)
    assert first == chunks_of(tmp_path, 1) == chunks_of(tmp_path, 2)
    assert len(first["table"]) > 10
    assert [info.metrics for info in committed_in(tmp_path)] == [{"loss": 0.5}] * 3
    state = state_of(0)
    assert restore_one(tmp_path, state, staging="buckets") == 2
    assert_is(state, 7)


def test_changes_are_stored_as_differences_and_the_memory_is_small(tmp_path: Path) -> None:
    ckpt, events = through(tmp_path, compress=True)  # however fast the store is
    state, sizes = state_of(3), []
    for step in range(1, 4):
        ckpt.save(step, state)
        sizes.append(ckpt._shipper._stager.arena.size)  # type: ignore[attr-defined]
        state["table"] += 1e-4
    ckpt.close()
    assert check(tmp_path) == {1: [], 2: [], 3: []}
    assert {how for _, how in chunks_of(tmp_path, 3)["table"].values()} == {"delta"}
    staged = [fields for kind, fields in events if kind == "checkpoint_staged"]
    assert len(staged) == 3
    assert max(sizes) <= 0.15 * staged[0]["bytes"]
    assert staged[0]["bytes"] > 14e6
    assert ckpt.stall_s >= staged[-1]["seconds"] > 0


def test_a_restart_goes_to_the_store(tmp_path: Path) -> None:
    ckpt, _ = through(tmp_path)
    ckpt.save(1, state_of(1))
    ckpt.wait()
    die(ckpt)
    ckpt, events = through(tmp_path)
    state = state_of(0)
    assert ckpt.restore(state) == 1
    assert [f["tier"] for kind, f in events if kind == "checkpoint_restored"] == ["store"]
    assert_is(state, 1)
    ckpt.save(2, state_of(2))
    ckpt.close()
    assert check(tmp_path) == {1: [], 2: []}


def test_what_a_dead_trainer_has_handed_over_whole_is_saved(tmp_path: Path) -> None:
    """A state that fits into the buckets as a whole needs its trainer no longer."""
    root = tmp_path / "store"
    with blocked(tmp_path, root) as hold:
        hold.close()
        ckpt, _ = through(root)
        ckpt.save(1, {"w": torch.arange(1000), "step": 1})
        hold.wait()
        die(ckpt)
        hold.release()
        state: dict[str, Any] = {"w": torch.zeros(1000, dtype=torch.int64), "step": 0}
        assert restore_one(root, state, staging="buckets") == 1
        assert torch.equal(state["w"], torch.arange(1000))


@pytest.mark.parametrize("compress", [True, False])
def test_a_slow_store_slows_training_down_and_nothing_else(tmp_path: Path, compress: bool) -> None:
    ckpt, events = through(tmp_path, compress=compress, budget=Budget(bytes_per_s=16 << 20))
    for step in (1, 2):
        ckpt.save(step, state_of(step))
    ckpt.close()
    assert "checkpoint_failed" not in events.kinds()
    assert "save_skipped" not in events.kinds()
    assert check(tmp_path) == {1: [], 2: []}


# --- what goes wrong ----------------------------------------------------------------------------


def test_a_service_that_dies_half_way_fails_the_save_at_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with blocked(tmp_path, root) as hold:
        ckpt, events = through(root)
        ckpt.save(1, state_of(1))
        ckpt.wait()
        hold.close()
        killer = threading.Thread(target=kill_when_it_reads, args=(hold, root))
        killer.start()
        ckpt.save(2, state_of(2))
        killer.join()
        with pytest.raises(SaveError, match="service has died while it read the state"):
            ckpt.wait()
    assert [f["step"] for kind, f in events if kind == "checkpoint_failed"] == [2]
    assert list(check(root)) == [1]
    hold.release()
    until(lambda: ckpt._client.is_connected, "another service is there")
    ckpt.save(2, state_of(2))  # told that it failed, it may be tried again
    ckpt.wait()
    ckpt.save(3, state_of(3))
    ckpt.close()
    assert check(root) == {1: [], 2: [], 3: []}


def _die_in_a_save(root: Path) -> None:
    ckpt, _ = through(root)
    ckpt.save(1, state_of(1))
    ckpt.wait()
    (root.parent / "gate").touch()
    ckpt.save(2, state_of(2))


def test_a_trainer_that_dies_half_way_loses_the_save_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with blocked(tmp_path, root) as hold:
        trainer = fork_server().Process(target=_die_in_a_save, args=(root,))
        trainer.start()
        hold.wait()
        trainer.kill()
        trainer.join()
        hold.release()
        ckpt, events = through(root)
        state = state_of(0)
        assert ckpt.restore(state) == 1
        assert_is(state, 1)
        assert [f["tier"] for kind, f in events if kind == "checkpoint_restored"] == ["store"]
        ckpt.save(2, state_of(2))
        ckpt.close()
        wait_until_ended(root)
    assert check(root) == {1: [], 2: []}


def test_a_store_that_breaks_half_way_fails_the_save(tmp_path: Path) -> None:
    root, switch = tmp_path / "store", tmp_path / "broken"
    with sabotaged(root, _BREAKS.format(switch=str(switch))):
        ckpt, _ = through(root)
        ckpt.save(1, state_of(1))
        ckpt.wait()
        switch.touch()
        ckpt.save(2, state_of(2))
        with pytest.raises(SaveError, match="the disk is gone"):
            ckpt.wait()
        switch.unlink()
        ckpt.save(3, state_of(3))
        ckpt.close()
        wait_until_ended(root)
    assert check(root) == {1: [], 3: []}


def test_a_service_that_comes_no_further_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with (
        blocked(tmp_path, root) as hold,
        mock.patch.object(BucketFlowControl.__init__, "__defaults__", (0.3,)),
    ):
        hold.close()
        ckpt, _ = through(root)
        ckpt.save(1, state_of(1))
        with pytest.raises(
            SaveError, match="has emptied no bucket for 0 s: the store or another node is slow"
        ):
            ckpt.wait()
        hold.release()
        with mock.patch.object(ckpt._shipper._flow, "_timeout_s", 60.0):  # type: ignore[attr-defined]
            ckpt.save(2, state_of(2))
            ckpt.close()
        wait_until_ended(root)
    assert check(root) == {2: []}


def test_memory_that_is_not_there_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with mock.patch.object(host_memory, "available", return_value=FreeMemory(20 << 20, "a limit")):
        ckpt = Checkpointer(tmp_path, run="r")
        with pytest.raises(StageError, match="use slots=1, or staging='buckets'"):
            ckpt.save(1, state_of(1))
        ckpt.close()
        ckpt, _ = through(tmp_path)
        ckpt.save(1, state_of(1))
        ckpt.close()
    assert check(tmp_path) == {1: []}
    with mock.patch.object(host_memory, "available", return_value=FreeMemory(1 << 20, "a limit")):
        ckpt, _ = through(tmp_path)
        with pytest.raises(StageError, match=r"buckets of 1 rank\), 1.0 MiB are free"):
            ckpt.save(2, state_of(2))
        ckpt.close()


def test_another_word_for_staging_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="staging must be 'slots' or 'buckets', got 'bucketed'"):
        Checkpointer(tmp_path, run="r", staging="bucketed")  # type: ignore[call-overload]
