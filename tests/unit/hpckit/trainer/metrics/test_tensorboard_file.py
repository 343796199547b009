"""TensorBoard reads what was written; what it cannot have, training does without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpckit.events.event_log import EventLog, read_events
from hpckit.system.child_processes import strays
from hpckit.trainer.metrics.record_writer import StepRecordWriter
from hpckit.trainer.metrics.tensorboard_curves import MARK, write_until
from hpckit.trainer.metrics.tensorboard_file import TensorBoardFile

STEPS = 40


def read(folder: Path, name: str) -> list[tuple[int, float]]:
    """Step and value of each point of a curve."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return [(point.step, point.value) for point in found.Scalars(name)]


def names(folder: Path) -> list[str]:
    found = EventAccumulator(str(folder))
    found.Reload()
    return sorted(found.Tags()["scalars"])


def catch_up(tmp: Path) -> None:
    write_until(lambda: True, tmp / "events.jsonl", tmp / "tensorboard")


def test_a_curve_goes_on_where_the_life_before_was_saved(tmp_path: Path) -> None:
    for at, steps in ((0, range(1, 6)), (3, range(4, 7))):
        with EventLog(tmp_path / "events.jsonl", generation=1, attempt=at, rank=0) as events:
            events.emit_kind("training_started", step=at, world_size=1)
            for step in steps:
                events.emit_kind("step", step=step, loss=step + at / 4, lr=0.5)
            events.emit_kind("validated", step=steps[-1], seconds=2.0, val_loss=at)
        catch_up(tmp_path)
    folder = tmp_path / "tensorboard"
    assert read(folder, "loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.75), (5, 5.75), (6, 6.75)]
    assert read(folder, "lr")[-1] == (6, 0.5)
    assert names(folder) == ["loss", "lr", "val_loss"]
    assert len([*folder.glob("events.out.tfevents.*")]) == 2
    catch_up(tmp_path)
    assert len([*folder.glob("events.out.tfevents.*")]) == 2, "they lacked nothing"


def test_what_is_told_of_a_life_before_its_first_record_is_not_lost(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as events:
        events.emit_kind("step", step=7, loss=7.0)
        catch_up(tmp_path)
        events.emit_kind("training_started", step=4)
        catch_up(tmp_path)  # of a process that is killed here
        events.emit_kind("step", step=5, loss=5.0)
    catch_up(tmp_path)
    assert read(tmp_path / "tensorboard", "loss") == [(5, 5.0)]


def test_files_are_read_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    """Within one second, after a clock went back, and beside a file of somebody else."""
    folder = tmp_path / "tensorboard"
    folder.mkdir()
    for number in range(12):
        scalars = TensorBoardFile(folder)
        scalars.restart(number, 0.0)
        scalars.write(number + 1, 0.0, {"loss": float(number)})
        scalars.close()
        ahead = folder / f"events.out.tfevents.{int(time.time()) + 10_000 * number:010d}.z.1.0"
        ahead.touch()
    assert read(folder, "loss") == [(number + 1, float(number)) for number in range(12)]


@pytest.mark.parametrize("mark", ["", "{}", '{"bytes": -5}', '{"bytes": "all"}', "[1]"])
def test_a_damaged_mark_costs_nothing(tmp_path: Path, mark: str) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / MARK).write_text(mark)
    with EventLog(tmp_path / "events.jsonl") as events:
        events.emit_kind("step", step=1, loss=1.0)
    catch_up(tmp_path)
    assert read(tmp_path / "tensorboard", "loss") == [(1, 1.0)]


def test_files_that_cannot_be_written_are_done_without_and_it_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with EventLog(tmp_path / "events.jsonl") as events:
        records = StepRecordWriter(events, tmp_path / "file")
        for step in (1, 2):
            records.write("step", step, {"loss": 1.0})
        records.close()
    (said,) = [e for e in read_events(tmp_path / "events.jsonl") if e.kind == "degraded"]
    assert "TensorBoard files are no longer written" in said["what"]


TRAINER = """
import os, sys, time
from pathlib import Path
from hpckit.events.event_log import EventLog
from hpckit.trainer.metrics.record_writer import StepRecordWriter

run = Path(sys.argv[1])
events = EventLog(run / "events.jsonl", rank=0)
records = StepRecordWriter(events, run / "tensorboard")
for step in range(1, 1 + int(sys.argv[2])):
    records.write("step", step, {"loss": float(step)})
records.flush()
print(records._curves._process.pid, flush=True)
time.sleep(300)
"""


def ignores(pid: int, number: signal.Signals) -> bool:
    """proc(5)."""
    (line,) = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("SigIgn:")
    ]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def test_of_a_trainer_that_is_killed_all_records_are_there(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAINER, str(tmp_path), str(STEPS)]
    env = {**os.environ, "HPCKIT_RUN": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as trainer:
        assert trainer.stdout is not None
        writer = psutil.Process(int(trainer.stdout.readline()))
        while not ignores(writer.pid, signal.SIGTERM):
            time.sleep(0.01)
        assert [each.pid for each in strays(tmp_path)] == [trainer.pid], "not the writer, too"
        writer.terminate()  # as Slurm does with all processes of a step
        trainer.kill()
    writer.wait(60)
    found = read(tmp_path / "tensorboard", "loss")
    assert found == [(step, float(step)) for step in range(1, STEPS + 1)]


def test_it_is_said_that_the_process_is_gone_and_the_next_one_makes_up_for_it(
    tmp_path: Path,
) -> None:
    with EventLog(tmp_path / "events.jsonl") as events:
        records = StepRecordWriter(events, tmp_path / "tensorboard")
        records.write("step", 1, {"loss": 1.0})
        records.flush()
        process = records._curves._process
        assert process is not None
        process.kill()
        process.wait()
        for step in (2, 3):
            records.write("step", step, {"loss": float(step)})
        records.close()
    (said,) = [e for e in read_events(tmp_path / "events.jsonl") if e.kind == "degraded"]
    assert "their process ended with -9" in said["what"]
    catch_up(tmp_path)
    assert read(tmp_path / "tensorboard", "loss") == [(1, 1.0), (2, 2.0), (3, 3.0)]
