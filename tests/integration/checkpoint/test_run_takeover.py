"""Saves that were cut short are finished or ended by who goes on with the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from checkpointing import Checkpointer, Last, SaveError, Store, list_checkpoints
from checkpointing.format.object_keys import LEASES, PACKS, parse_pack
from checkpointing.store.catalog import committed
from checkpointing.store.deletion.pack_sweep import sweep
from tests.integration.checkpoint.forked_programs import run_forked
from tests.integration.checkpoint.store_damage import check
from tests.integration.rank_worlds import Recorder
from tests.integration.service.running_services import Hold, elsewhere, sabotaged

# Saves step 1, then 2, and says who it is
TRAINER = """
ckpt = Checkpointer(tmp, run="r")
ckpt.save(1, {"w": torch.full((1000,), 1.0)})
ckpt.wait()
(tmp / "trainer").write_text(str(os.getpid()))
ckpt.save(2, {"w": torch.rand(1000)})
ckpt.wait()
"""

# The service dies at a function in step 2, and its trainer with it
DIES_AT = """
import os, signal
import checkpointing.service.{module} as module
original = module.{function}

def dies(*args, **options):
    if os.path.exists({trainer!r}):
        os.kill(int(open({trainer!r}).read()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **options)

module.{function} = dies
"""

WRITE_PART = ("coordinator.rank_part_writer", "write_part")
COMMIT = ("coordinator.save_leader", "commit")


def killed_in(root: Path, where: tuple[str, str]) -> None:
    """Of step 2, everything before this function was done."""
    module, function = where
    sabotage = DIES_AT.format(module=module, function=function, trainer=str(root / "trainer"))
    with sabotaged(root, sabotage):
        assert run_forked(root, TRAINER, []) == [-9]


def packs(store: Store) -> set[bytes | None]:
    return {parse_pack(entry.key) for entry in store.storage.list(PACKS)}


def referred(store: Store) -> set[bytes | None]:
    return {pack for found in committed(store)[0] for pack in found.document.packs()}


def test_a_save_that_only_lacked_the_commit_is_committed(tmp_path: Path) -> None:
    killed_in(tmp_path, COMMIT)
    assert [(i.step, i.state) for i in list_checkpoints(tmp_path)] == [
        (1, "committed"),
        (2, "incomplete"),
    ]
    events, state = Recorder(), {"w": torch.zeros(1000)}
    ckpt = Checkpointer(tmp_path, run="r", on_event=events)
    assert ckpt.restore(state) == 2
    ckpt.close()
    assert events.kinds() == ["checkpoint_adopted", "manifest_read", "checkpoint_restored"]
    newest = list_checkpoints(tmp_path)[-1]
    assert events[0][1] == {"step": 2, "id": newest.id}
    assert check(tmp_path) == {1: [], 2: []}
    assert state["w"].std() > 0.1, "these are the random numbers of step 2"


def test_a_save_that_lacked_a_part_never_becomes_a_checkpoint(tmp_path: Path) -> None:
    killed_in(tmp_path, WRITE_PART)
    events, state = Recorder(), {"w": torch.zeros(1000)}
    ckpt = Checkpointer(tmp_path, run="r", on_event=events)
    assert ckpt.restore(state) == 1
    assert events.kinds() == ["save_abandoned", "manifest_read", "checkpoint_restored"]
    assert events[0][1]["step"] == 2
    ckpt.save(2, {"w": torch.full((1000,), 3.0)})
    ckpt.close()
    assert check(tmp_path) == {1: [], 2: []}
    assert list_checkpoints(tmp_path)[-1].id != events[0][1]["id"]


def test_what_a_killed_save_wrote_is_removed_once_its_lease_has_run_out(tmp_path: Path) -> None:
    """By the prune of anybody, of another run too; and not before."""
    killed_in(tmp_path, WRITE_PART)
    other = Checkpointer(tmp_path, run="other", keep=[Last(1)])
    store = Store.open(tmp_path)
    other.save(1, {"v": torch.zeros(1)})
    other.wait()
    sweep(store, grace_s=0)
    assert packs(store) > referred(store), "who wrote it may live"
    leases = list((tmp_path / LEASES).glob("*.lease"))
    assert leases
    for lease in leases:
        long_ago = lease.stat().st_mtime - 3600
        os.utime(lease, (long_ago, long_ago))
    other.save(2, {"v": torch.ones(1)})
    other.close()
    sweep(store, grace_s=0)
    assert packs(store) == referred(store)
    assert not list((tmp_path / LEASES).glob("*.lease"))
    store.close()
    assert check(tmp_path, "r") == {1: []}


def take_over(root: Path) -> int | None:
    """What the next start of the job, on other nodes, does first; the step that it goes on from."""
    with elsewhere():
        ckpt = Checkpointer(root, run="r")
        step = ckpt.restore({"w": torch.zeros(1000)})
        ckpt.close()
        return step


def test_who_was_taken_over_says_so_until_it_takes_the_run_back(tmp_path: Path) -> None:
    root, hold = tmp_path / "store", Hold(tmp_path)
    state, events = {"w": torch.rand(1000)}, Recorder()
    with sabotaged(root, hold.sabotage(WRITE_PART)):
        old = Checkpointer(root, run="r", on_event=events)
        old.save(1, state)
        old.wait()
        state["w"].copy_(torch.rand(1000))
        hold.close()
        old.save(2, state)
        hold.wait()
        assert take_over(root) == 1
        hold.release()
        with pytest.raises(SaveError, match=r"step 2: .*(took over the run 'r'|declared dead)"):
            old.wait()
        assert "checkpoint_failed" in events.kinds()
        assert check(root) == {1: []}

        # all that it wrote goes
        store = Store.open(root)
        sweep(store, grace_s=0)
        sweep(store, grace_s=0)
        assert packs(store) == referred(store)
        store.close()
        old.save(3, state)
        with pytest.raises(SaveError, match=r"step 3: .*another process took over the run 'r'"):
            old.wait()
        assert check(root) == {1: []}

        # what it goes on from now is what it has staged, which no one else has gone beyond
        restored = {"w": torch.zeros(1000)}
        assert old.restore(restored) == 1
        old.save(2, state)
        old.close()
    assert check(root) == {1: [], 2: []}
    assert len({info.id.partition("-")[2] for info in list_checkpoints(root)}) == 2


def test_a_save_that_is_adopted_under_ones_hands_is_a_success(tmp_path: Path) -> None:
    root, hold, events = tmp_path / "store", Hold(tmp_path), Recorder()
    hold.close()
    with sabotaged(root, hold.sabotage(COMMIT)):
        old = Checkpointer(root, run="r", on_event=events)
        old.save(1, {"w": torch.rand(1000)})
        hold.wait()
        assert take_over(root) == 1
        hold.release()
        old.wait()
        old.close()
    assert events.kinds()[-1] == "checkpoint_committed"
    assert check(root) == {1: []}


def test_an_idle_writer_that_was_taken_over_commits_nothing_any_more(tmp_path: Path) -> None:
    old = Checkpointer(tmp_path, run="r")
    old.save(1, {"w": torch.ones(1000)})
    old.wait()
    assert take_over(tmp_path) == 1
    old.save(2, {"w": torch.full((1000,), 2.0)})
    with pytest.raises(SaveError, match="another process took over the run 'r'"):
        old.wait()
    old.close()
    assert check(tmp_path) == {1: []}
