"""TensorBoard reads what was written; what it cannot have, training does without."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpckit.run.events import EventLog, read_events
from hpckit.training.scalars import Scalars


def read(folder: Path, name: str) -> list[tuple[int, float]]:
    """Step and value of each point of a curve."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return [(point.step, point.value) for point in found.Scalars(name)]


def test_a_curve_goes_on_where_the_life_before_was_saved(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    with EventLog(tmp_path / "events.jsonl") as events:
        for at, steps in ((0, range(1, 6)), (3, range(4, 7))):
            scalars = Scalars(folder, events, at)
            for step in steps:
                scalars.write(step, {"loss": step + at / 4, "lr": 0.5})
            scalars.close()
    assert read(folder, "loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.75), (5, 5.75), (6, 6.75)]
    assert read(folder, "lr")[-1] == (6, 0.5)
    assert read_events(tmp_path / "events.jsonl") == []


def test_files_that_cannot_be_written_are_done_without_and_it_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with EventLog(tmp_path / "events.jsonl") as events:
        scalars = Scalars(tmp_path / "file", events, 0)
        for step in (1, 2):
            scalars.write(step, {"loss": 1.0})
        scalars.close()
    (said,) = read_events(tmp_path / "events.jsonl")
    assert said.kind == "degraded"
    assert "no more TensorBoard files" in said["what"]
