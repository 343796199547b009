"""What the supervisor knows of saved steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpointing import Checkpointer, CheckpointError, list_run
from hpckit.events.earlier_events import ids_left_behind
from hpckit.events.event_log import EventLog, read_events
from hpckit.events.schema import event_of
from hpckit.rundir.directory import RunDir, run_name
from hpckit.submit.fork.fork_submission import choose_checkpoint
from hpckit.submit.newest_checkpoint import SavedStep, newest_step
from hpckit.submit.preparation import move_aside
from tests.unit.hpckit.specs_and_processes import make_spec


def save(where: str, run: RunDir, *steps: int) -> None:
    checkpointer = Checkpointer(where, run=run.name)
    for step in steps:
        checkpointer.save(step, {"weights": {"w": torch.ones(3)}, "run": {"step": step}})
        checkpointer.wait()  # a newer save may take the place of one that waits
    checkpointer.close()


@pytest.mark.parametrize("url", [None, "{}/store", "file://{}/store"])
def test_progress_is_seen_wherever_checkpoints_are_kept(tmp_path: Path, url: str | None) -> None:
    where = url and url.format(tmp_path)
    spec = make_spec({"checkpoint.url": where})
    run = RunDir(tmp_path / run_name(spec))
    run.path.mkdir()
    assert newest_step(spec, run) == 0
    save(where or str(run.checkpoints), run, 5, 12)
    assert newest_step(spec, run) == 12


def test_what_the_run_has_left_behind_is_not_the_newest(tmp_path: Path) -> None:
    spec = make_spec({})
    run = RunDir(tmp_path / run_name(spec))
    run.path.mkdir()
    store = str(run.checkpoints)
    save(store, run, 5, 12)
    ids = {info.step: info.id for info in list_run(store, run.name)}
    spike = {"first_step": 13, "step": 13, "what": "", "first_position": 0, "end_position": 4}
    started = {"generation": 1, "world_size": 1, "samples": 9}
    with EventLog(run.events) as events:
        for step, id_ in ids.items():
            events.emit_kind("checkpoint_committed", step=step, id=id_, store=store)
        events.emit_kind("spike", **spike, is_left_out=True)
        events.emit_kind("training_started", step=5, **started)
    assert newest_step(spec, run) == 5
    left_behind = ids_left_behind(run)
    assert [*left_behind] == [ids[12]]
    assert choose_checkpoint(store, run.name, None, left_behind).step == 5
    assert choose_checkpoint(store, run.name, 12, left_behind).step == 12, "if it is named"
    with pytest.raises(
        CheckpointError, match=r"no checkpoint that run .* would continue from; .*5"
    ):
        choose_checkpoint(store, run.name, None, dict.fromkeys(ids.values(), "a spike"))
    save(store, run, 9)
    assert newest_step(spec, run) == 9


def test_another_run_of_the_same_store_is_no_progress_of_this_one(tmp_path: Path) -> None:
    spec = make_spec({"checkpoint.url": str(tmp_path / "store")})
    save(str(tmp_path / "store"), RunDir(tmp_path / "other"), 7)
    assert newest_step(spec, RunDir(tmp_path / "run")) == 0


def test_a_store_out_of_reach_is_no_progress_and_no_reason_to_give_up(tmp_path: Path) -> None:
    """Neither at the beginning, where what was told of it has to do, nor later."""
    spec = make_spec({"checkpoint.url": str(tmp_path / "store")})
    run = RunDir(tmp_path / run_name(spec))
    run.path.mkdir()
    save(str(tmp_path / "store"), run, 5)
    record = tmp_path / "store" / "hpckit.json"
    whole = record.read_bytes()
    with EventLog(run.events, submission=1) as events:
        record.write_bytes(b"{}")
        saved = SavedStep(spec, run, events, [event_of(1.0, "checkpoint_committed", {"step": 3})])
        assert saved.step == 3
        record.write_bytes(whole)
        assert not saved.update(1), "how old that one is was not known"
        assert saved.step == 5
        assert not saved.update(1), "nothing newer"
        record.write_bytes(b"{}")
        assert not saved.update(1)
        record.write_bytes(whole)
        save(str(tmp_path / "store"), run, 7)
        assert saved.update(1)
        again = SavedStep(spec, run, events, [])
        assert again.step == 7
        save(str(tmp_path / "store"), run, 9)
        assert again.update(2)
    degraded = [event for event in read_events(run.events) if event.kind == "degraded"]
    assert [event["generation"] for event in degraded] == [None, 1]
    assert all(e["what"].startswith("cannot list the checkpoints: ") for e in degraded)


@pytest.mark.parametrize("url", [None, "{}/store"])
def test_a_run_begun_anew_has_no_checkpoint_to_go_on_from(tmp_path: Path, url: str | None) -> None:
    """What `launch.py --fresh` does to an earlier run of the same name."""
    where = url and url.format(tmp_path)
    spec = make_spec({"checkpoint.url": where})
    run = RunDir(tmp_path / run_name(spec))
    run.path.mkdir()
    save(where or str(run.checkpoints), run, 5)
    move_aside(run, spec)
    run.path.mkdir()
    assert newest_step(spec, run) == 0
