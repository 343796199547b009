"""What the supervisor knows of saved steps; the rest of it is tested with real jobs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from checkpointing import Checkpointer
from hpckit.launch.prepare import move_aside
from hpckit.launch.supervise import Supervisor, newest_step
from hpckit.run.directory import RunDir, run_name
from hpckit.run.events import EventLog, read_events
from hpckit.run.parse import dump_spec
from tests.unit.hpckit.hpckit_parts import make_spec

SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)  # that a supervisor takes over


def save(where: str, run: RunDir, *steps: int) -> None:
    checkpointer = Checkpointer(where, run=run.name)
    for step in steps:
        checkpointer.save(step, {"weights": {"w": torch.ones(3)}, "run": {"step": step}})
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


def test_another_run_of_the_same_store_is_no_progress_of_this_one(tmp_path: Path) -> None:
    spec = make_spec({"checkpoint.url": str(tmp_path / "store")})
    save(str(tmp_path / "store"), RunDir(tmp_path / "other"), 7)
    assert newest_step(spec, RunDir(tmp_path / "run")) == 0


def test_a_store_out_of_reach_is_no_progress_and_no_reason_to_give_up(tmp_path: Path) -> None:
    signals = {number: signal.getsignal(number) for number in SIGNALS}
    spec = make_spec({"checkpoint.url": str(tmp_path / "store")})
    run = RunDir(tmp_path / run_name(spec))
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(spec))
    save(str(tmp_path / "store"), run, 5)
    with EventLog(run.events, submission=1) as events:
        supervisor = Supervisor(run, 1, (), events)
        supervisor._generation = 1
        assert supervisor._has_saved()
        assert not supervisor._has_saved(), "nothing newer"
        record = tmp_path / "store" / "hpckit.json"
        whole = record.read_bytes()
        record.write_bytes(b"{}")
        assert not supervisor._has_saved()
        record.write_bytes(whole)
        save(str(tmp_path / "store"), run, 7)
        assert supervisor._has_saved()
    for number, handler in signals.items():
        signal.signal(number, handler)
    (degraded,) = [event for event in read_events(run.events) if event.kind == "degraded"]
    assert degraded["what"].startswith("cannot look at the checkpoints: ")


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
