"""A checkpoint that somebody has a reason against is passed over, wherever it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

from checkpointing import Checkpointer, CheckpointError, Last, list_run
from hpckit.cli.main import app
from tests.integration.checkpoint.single_process_saves import die, restore_one
from tests.integration.rank_worlds import Recorder, run_world
from tests.integration.service.running_services import kill_here, wait_until_ended

BAD = float("nan")


def state_of(value: float) -> dict[str, Any]:
    return {"w": torch.full((1000,), float(value))}


def reason(state: dict[str, Any]) -> str | None:
    return None if state["w"].isfinite().all() else "not finite"


def resumed(root: Path, events: Recorder | None = None) -> tuple[Checkpointer, int | None, Any]:
    state = state_of(0)
    ckpt = Checkpointer(root, run="r", on_event=events)
    step = ckpt.restore(state, check=lambda: reason(state))
    return ckpt, step, state


def left_in_memory(root: Path, *values: float) -> None:
    """Steps 1, 2, ... of these values."""
    ckpt = Checkpointer(root, run="r", slots=len(values))
    for step, value in enumerate(values, start=1):
        ckpt.save(step, state_of(value))
        ckpt.wait()
    die(ckpt)


def left_in_store(root: Path, *values: float) -> None:
    with_memory = Checkpointer(root, run="r")
    for step, value in enumerate(values, start=1):
        with_memory.save(step, state_of(value))
        with_memory.wait()
    with_memory.close()
    wait_until_ended(root)


@pytest.mark.parametrize(
    ("leave", "tier"),
    [(left_in_memory, "memory"), (left_in_store, "store")],
    ids=("memory", "store"),
)
def test_the_one_before_is_gone_on_from(tmp_path: Path, leave: Any, tier: str) -> None:
    root, events = tmp_path / "store", Recorder()
    leave(root, 1.0, 2.0, BAD)
    ckpt, step, state = resumed(root, events)
    assert step == 2
    assert torch.equal(state["w"], state_of(2.0)["w"])
    told = [fields for kind, fields in events if kind == "checkpoint_skipped"]
    assert [(fields["step"], fields["reason"]) for fields in told] == [(3, "rank 0: not finite")]
    assert [fields["tier"] for kind, fields in events if kind == "checkpoint_restored"] == [tier]
    ckpt.save(3, state_of(3.0))
    ckpt.close()
    wait_until_ended(root)
    found = state_of(0)
    assert restore_one(root, found) == 3
    assert torch.equal(found["w"], state_of(3.0)["w"]), "done again, it is the newer one"


@pytest.mark.parametrize("leave", [left_in_memory, left_in_store], ids=("memory", "store"))
def test_nothing_left_is_an_error_and_no_beginning(tmp_path: Path, leave: Any) -> None:
    root = tmp_path / "store"
    leave(root, BAD, BAD)
    state = state_of(0)
    ckpt = Checkpointer(root, run="r")
    with pytest.raises(CheckpointError, match="rank 0: not finite"):
        ckpt.restore(state, check=lambda: reason(state))
    die(ckpt)
    kill_here(root)


@pytest.mark.parametrize("leave", [die, Checkpointer.close], ids=("memory", "store"))
def test_a_certified_one_is_preferred_where_that_is_asked_for(tmp_path: Path, leave: Any) -> None:
    root = tmp_path / "store"
    ckpt = Checkpointer(root, run="r", slots=4)
    for step, certified in enumerate(("bits", "bits", "", ""), start=1):
        ckpt.save(step, state_of(step), certified=certified)
        ckpt.wait()
    leave(ckpt)
    found = [restored(root, *accepted) for accepted in ((1, 2, 3, 4), (1, 3, 4), (3,))]
    assert found == [(2, "bits"), (1, "bits"), (3, "")], (
        "an uncertified one only where none is left"
    )
    shown = CliRunner().invoke(app, ["ckpt", "verify", str(root), "--level", "quick"]).stdout
    assert shown.count("certified (bits)") == 2
    listed = CliRunner().invoke(app, ["ckpt", "verify", str(root), "--level", "quick", "--json"])
    marks = [one["certified"] for one in json.loads(listed.stdout)["checkpoints"]]
    assert marks == ["bits", "bits", "", ""]


def restored(root: Path, *accepted: int) -> tuple[int | None, str]:
    """The step that is restored if certified ones are preferred, and how it was certified."""
    ckpt, state = Checkpointer(root, run="r"), state_of(0)

    def check() -> str | None:
        return None if int(state["w"][0]) in accepted else "not wanted"

    step = ckpt.restore(state, check=check, prefer_certified=True)
    how = ckpt.restored_certified
    ckpt.close()
    wait_until_ended(root)
    return step, how


def test_a_check_that_fails_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    left_in_store(root, 1.0)
    ckpt = Checkpointer(root, run="r")

    def broken() -> str | None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        ckpt.restore(state_of(0), check=broken)
    assert ckpt.restore(state := state_of(0)) == 1
    assert torch.equal(state["w"], state_of(1.0)["w"])
    ckpt.close()
    wait_until_ended(root)


def test_what_was_rejected_before_need_not_be_loaded_again(tmp_path: Path) -> None:
    root, events = tmp_path / "store", Recorder()
    left_in_store(root, 1.0, 2.0, 3.0)
    newest = [info.id for info in list_run(str(root), "r") if info.step > 1]
    ckpt, state = Checkpointer(root, run="r", keep=[Last(1)], on_event=events), state_of(0)
    assert ckpt.restore(state, avoid=dict.fromkeys(newest, "mine")) == 1
    assert torch.equal(state["w"], state_of(1.0)["w"])
    assert "checkpoint_skipped" not in events.kinds()
    ckpt.save(2, state_of(2.0))
    ckpt.close()
    wait_until_ended(root)
    assert sorted(info.step for info in list_run(str(root), "r")) == [2, 3]


def one_has_a_reason(rank: int, tmp: Path) -> None:
    w, own = torch.zeros(8), torch.zeros(4)
    state: dict[str, Any] = {"w": w, "of": {str(rank): own}}
    ckpt = Checkpointer(tmp / "store", run="r")
    for step in (1, 2):
        w.fill_(step)
        own.fill_(step)
        ckpt.save(step, state)
        ckpt.wait()
    against = 2.0 if rank == 1 else -1.0
    assert ckpt.restore(state, check=lambda: "mine" if w[0] == against else None) == 1
    assert w.tolist() == [1.0] * 8
    assert own.tolist() == [1.0] * 4
    dist.barrier()
    ckpt.close()


def test_one_rank_is_enough(tmp_path: Path) -> None:
    run_world(2, one_has_a_reason, tmp_path)
    wait_until_ended(tmp_path / "store")
