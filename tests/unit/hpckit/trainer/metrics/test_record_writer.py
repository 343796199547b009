"""Records that are written beside training, into real files."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpckit.events.event_log import EventLog, read_events
from hpckit.trainer.metrics.record_writer import StepRecordWriter

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def lock_held(path: Path) -> Iterator[None]:
    """By another process, as by one on another node that is slow to write."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield


@pytest.fixture
def records(tmp_path: Path) -> Iterator[StepRecordWriter]:
    with EventLog(tmp_path / "events.jsonl", rank=0) as events:
        found = StepRecordWriter(events, tmp_path / "tensorboard")
        yield found
        found.close()


def steps(folder: Path) -> list[int]:
    return [event["step"] for event in read_events(folder / "events.jsonl")]


def test_all_are_there_in_order_once_they_are_waited_for(
    records: StepRecordWriter, tmp_path: Path
) -> None:
    records.flush()  # of none
    begun_s = time.time()
    for step in range(50):
        records.write("step", step, {"loss": 1.0 / (step + 1)})
    records.write("validated", 50, {"val_loss": 2.0}, seconds=3.0)
    records.flush()
    *found, last = read_events(tmp_path / "events.jsonl")
    assert [event["step"] for event in found] == list(range(50))
    assert found[1]["loss"] == 0.5
    assert all(begun_s - 1e-5 <= event.time <= time.time() for event in found)
    assert (last.kind, last["val_loss"], last["seconds"], last["rank"]) == ("validated", 2, 3, 0)
    records.close()
    assert any((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


def test_what_keeps_one_from_being_written_is_raised_where_it_is_waited_for(
    records: StepRecordWriter,
) -> None:
    records.write("step", 1, {"loss": object()})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="not JSON serializable"):
        records.flush()


def test_training_does_not_wait_for_a_lock_but_a_save_does(
    records: StepRecordWriter, tmp_path: Path
) -> None:
    with lock_held(tmp_path / "events.jsonl"):
        told_s = time.time()
        records.write("step", 1, {"loss": 1.0})
        later_s = time.time()
        records.write("step", 2, {"loss": 1.0})
        assert steps(tmp_path) == []
    records.flush()
    assert steps(tmp_path) == [1, 2]
    first, _ = read_events(tmp_path / "events.jsonl")
    assert told_s - 1e-5 <= first.time <= later_s + 1e-5, "when it was told, not when written"
