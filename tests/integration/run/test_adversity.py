"""What goes wrong around a run: said in one line, nothing lost, never taken for success."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpointing import list_run
from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.rundir.supervisor_process import starting_process
from hpckit.system.atomic_files import read_json
from tests.integration.checkpoint.store_damage import check
from tests.integration.cli.run_commands import Typed
from tests.integration.run.runs import (
    ALONE,
    ON_ONE_NODE,
    PACED,
    REPO,
    await_commit,
    command,
    complete,
    history,
    kill,
    losses,
    started,
)

HPCKIT = str(Path(sys.executable).with_name("hpckit"))


def test_ctrl_c_at_start_up_is_not_lost(tmp_path: Path, shards: Path) -> None:
    with started(tmp_path, command(tmp_path, shards, *ALONE, PACED, "train.steps=5000")) as it:
        it.wait_until(lambda: any(it.run.submitit.glob("*_submitted.pkl")))
        it.process.send_signal(signal.SIGINT)
        status, output = it.finish()
    assert status == 130, output
    assert read_json(it.run.verdict)["kind"] == "stopped"


def test_signals_to_the_command_reach_the_supervisor(tmp_path: Path, shards: Path) -> None:
    """SIGUSR2, early and late, is a preemption and the run continues; SIGTERM saves and stops."""
    words = command(tmp_path, shards, *ALONE, PACED)
    with started(tmp_path, words) as it:
        it.wait_until(lambda: any(it.run.submitit.glob("*_submitted.pkl")))
        it.process.send_signal(signal.SIGUSR2)
        it.wait_for("generation_ended", verdict="preempted")
        pid = it.wait_for("run_started")["pid"]
        it.wait_for_step(3)
        it.process.send_signal(signal.SIGUSR2)
        it.wait_for("generation_ended", count=2, verdict="preempted")
        it.wait_for("training_started", generation=3)
        it.process.send_signal(signal.SIGTERM)
        status, output = it.finish()
    assert status == 130, output
    assert f"the supervisor is process {pid}: SIGUSR2 " in output
    assert read_json(it.run.verdict)["kind"] == "stopped"
    status, output = complete(tmp_path, words)
    assert status == 0, output
    found = history(it.run)
    assert (found.steps_kept, found.repeated) == (60, ()), "no step was done again"


def test_the_follower_outlives_submitits_controller(
    tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    with started(tmp_path, command(tmp_path, shards, *ON_ONE_NODE)) as it:
        it.wait_for("run_started")
        controller = starting_process(it.run)
        assert controller is not None
        assert "submitit.local._local" in controller.cmdline()
        it.wait_for_step(15)
        kill(controller.pid)
        status, output = it.finish()
    assert status == 0, output
    assert losses(it.run) == losses(reference)


def test_two_directories_never_write_one_store(tmp_path: Path, shards: Path) -> None:
    endless = "train.steps=100000"  # a quick machine is to be at it when the second one comes
    words = (*ALONE, f"checkpoint.url={tmp_path / 'store'}", endless)
    first_root, second_root = tmp_path / "first", tmp_path / "second"
    with started(first_root, command(first_root, shards, *words)) as first:
        first.wait_for_step(5)
        second = subprocess.run(
            command(second_root, shards, *words), capture_output=True, text=True, cwd=REPO
        )
        assert second.returncode == 2, second.stdout
        assert "in use by submission 1 of" in second.stderr
        first.process.send_signal(signal.SIGINT)
        status, output = first.finish()
    assert status == 130, output
    assert not list(second_root.glob("*/submissions"))


def test_damaged_records_are_refused_or_passed_over_in_one_line(
    tmp_path: Path, shards: Path
) -> None:
    """And no other code runs where the snapshot is gone."""
    with started(tmp_path, command(tmp_path, shards, *ALONE, PACED)) as it:
        it.wait_for_step(15)
        it.process.send_signal(signal.SIGINT)
        assert it.finish()[0] == 130
    away = it.run.code(1).rename(tmp_path / "away")
    resumed = subprocess.run([HPCKIT, "resume", str(it.run.path)], capture_output=True, text=True)
    assert resumed.returncode == 2, resumed.stdout
    assert str(it.run.code(1)) in resumed.stderr
    away.rename(it.run.code(1))
    it.run.verdict.write_bytes(it.run.verdict.read_bytes()[:20])
    with it.run.events.open("ab") as events:
        events.write(b'{"time": 1, "kind": "st\x00\xff')
    told = subprocess.run([HPCKIT, "report", str(it.run.path)], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "Traceback" not in told.stderr
    it.run.spec(1).write_bytes(b"\xff\xfe")
    refused = subprocess.run([HPCKIT, "resume", str(it.run.path)], capture_output=True, text=True)
    assert refused.returncode == 2
    (line,) = [text for text in refused.stderr.splitlines() if text.startswith("error: ")]
    assert str(it.run.spec(1)) in line
    assert "Traceback" not in refused.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 48 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a file system takes root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_survived_or_said_and_resumed_from(
    small_disk: Path, shards: Path, reference: RunDir
) -> None:
    """Before the last save: who starts again from what is in memory has it in no store."""
    few = ("checkpoint.every_steps=30", "health.disk_free_gib=null")  # and there is one at the end
    small = command(small_disk, shards, *ON_ONE_NODE, PACED, *few)
    soon = ("retry=none", "retry.max_restarts=1", "cluster.grace_s=10")  # a service goes on trying
    with started(small_disk, [*small, *soon]) as it:
        await_commit(it, 30)
        with it.paused():  # before they save step 60
            fill = small_disk / "fill"
            for size in (1 << 20, 4096):
                with pytest.raises(OSError), fill.open("ab", buffering=0) as file:  # noqa: PT012
                    while True:
                        file.write(b"\0" * size)
        status, output = it.finish()
    assert status in (70, 75), output
    assert "Traceback" not in output
    assert max(check(it.run.checkpoints)) == 30
    run = it.run
    assert f"the disk of {run.path} is full" in Typed(run, {}).text("why")
    fill.unlink()
    status, output = complete(small_disk, small)
    assert status == 0, output
    assert max(check(run.checkpoints)) == 60
    assert not any(check(run.checkpoints).values())
    assert losses(run)[60] == losses(reference)[60]
    assert history(run).steps_kept == 60


def test_a_machine_that_is_not_healthy_is_told_and_not_tried_again(
    tmp_path: Path, shards: Path
) -> None:
    status, output = complete(
        tmp_path, command(tmp_path, shards, *ALONE, "health.disk_free_gib=1e9")
    )
    run = RunDir(next(tmp_path.glob("t-*")))
    verdict = read_json(run.verdict)
    assert status == 75, output
    assert verdict["final"] is True
    assert verdict["reason"].startswith(f"too few healthy nodes: this machine (disk of {run.path}")
    assert "less than health.disk_free_gib=1e+09" in verdict["reason"]
    assert run.generation_numbers() == [1]


def test_a_loss_that_is_no_number_again_ends_the_run_with_what_was_good(
    tmp_path: Path, shards: Path
) -> None:
    words = (*ON_ONE_NODE, "optim.lr=1e30", "checkpoint.every_steps=1", "train.log_every=1")
    with started(tmp_path, command(tmp_path, shards, *words)) as it:
        status, output = it.finish()
    assert status == 70, output
    told = read_events(it.run.events)
    first, second = (event["step"] for event in told if event.kind == "not_finite")
    assert first == second
    saved = [info.step for info in list_run(str(it.run.checkpoints), it.run.name)]
    assert saved, "a save is skipped only while others are under way"
    assert set(saved) <= {*range(1, first)}
    verdict = read_json(it.run.verdict)
    assert verdict is not None
    assert verdict["kind"] == "permanent"
    assert f"step {first}: " in verdict["reason"]
    assert "as when it was computed before" in verdict["reason"]
