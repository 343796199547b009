"""What a run has left out and left behind after spikes stays so, with spikes looked for or not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from data import Loader, mixed, open_dataset
from hpckit.events.earlier_events import EarlierEvents
from hpckit.events.event_log import EventLog
from hpckit.trainer.batches.step_source import StepSource
from hpckit.trainer.certification import doubtful_checkpoints
from hpckit.trainer.certification.doubtful_checkpoints import PastDifferences
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.spikes import past_rollbacks
from hpckit.trainer.spikes.past_rollbacks import PastRollbacks
from tests.unit.data.tars import write_tar

SIZES = {"large": 40, "small": 6}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without other ranks."""
    for module in (past_rollbacks, doubtful_checkpoints):
        monkeypatch.setattr(module, "rows_of_rank_0", lambda rows, width: [*map(list, rows)])


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    for name, size in SIZES.items():
        (tmp_path / name).mkdir()
        write_tar(tmp_path / name / "0.tar", [(f"{name}{i:02d}.txt", b"x") for i in range(size)])
    stream = mixed([open_dataset(tmp_path / name) for name in SIZES], [3, 1], names=[*SIZES])
    return Loader(stream, global_batch=4)


def earlier(path: Path, *happened: Any) -> EarlierEvents:
    """A number is the step from which training starts, a pair the positions of a spike."""
    with EventLog(path) as log:
        for one in happened:
            if isinstance(one, tuple):
                first, end = one
                steps = {"first_step": first // 4 + 1, "step": end // 4, "what": "loss is nan"}
                where = {"first_position": first, "end_position": end}
                log.emit_kind("spike", **steps, **where, is_left_out=True)
            else:
                log.emit_kind("training_started", step=one, world_size=1, samples=None)
    return EarlierEvents(path, is_reader=True)


def made(events: EarlierEvents, loader: Any) -> PastRollbacks:
    source = SimpleNamespace(loader=loader, name="Any", position=40)
    return PastRollbacks(events, cast(StepSource, source))


def test_samples_stay_left_out_and_a_state_that_was_left_behind_is_refused(
    tmp_path: Path, loader: Loader
) -> None:
    found = made(earlier(tmp_path / "events", 0, (20, 24), 3), loader)
    assert found.saved == {"rollbacks": 1}
    assert not found.is_rolling_back
    assert "positions 20 to 23" in str(found.problem_of_state({"step": 10}))
    assert found.leave_out() is None
    assert loader.skipped.to_state() == [[20, 24]]
    assert found.problem_of_state({"step": 10, "rollbacks": 1}) is None
    assert "went back to step 3" in str(found.problem_of_state({"step": 4, "rollbacks": 0}))


def test_a_source_that_ends_is_named(tmp_path: Path, loader: Loader) -> None:
    found = made(earlier(tmp_path / "events", 0, (0, 40)), loader)
    assert found.is_rolling_back
    assert str(found.leave_out()).startswith("small: all samples are left out after spikes")


def test_no_sample_is_left(tmp_path: Path, loader: Loader) -> None:
    found = made(earlier(tmp_path / "events", 0, (0, 400), 0), loader)
    with pytest.raises(TrainingError, match="spike at step 100, positions 0 to 399, cannot be"):
        found.leave_out()


def test_another_loader_leaves_out_nothing_and_that_is_said(tmp_path: Path) -> None:
    found = made(earlier(tmp_path / "events", 0, (20, 24), 3), loader=[])
    assert "samples of 1 earlier spikes are not left out" in str(found.leave_out())
    assert "went back to step 3" in str(found.problem_of_state({"step": 4, "rollbacks": 0}))


def test_a_state_from_before_the_first_rollback_may_be_left_behind(tmp_path: Path) -> None:
    """Also one that was saved while no spikes were looked for."""
    events = earlier(tmp_path / "events", 0, 8)
    found = made(events, loader=[])
    assert found.leave_out() is None
    assert PastDifferences(events).saved == {}
    saved = {"step": 8, **found.saved}
    assert found.problem_of_state(saved) is None
    later = made(earlier(tmp_path / "events", (20, 24), 3), loader=[])
    assert "went back to step 3" in str(later.problem_of_state(saved))


def test_a_doubtful_state_is_refused_without_checks_too(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events") as log:
        what = {"ranks": [1], "hosts": ["a"], "nodes": [0], "tensors": [], "what": ""}
        how = {"is_persistent": False, "is_excluded": False}
        log.emit_kind("wrong_computation", step=30, good_step=10, **what, **how)
    found = PastDifferences(EarlierEvents(tmp_path / "events", is_reader=True))
    assert found.saved == {"differences": 1}
    assert "differently at step 30" in str(found.problem_of_state({"step": 20}))
    assert found.problem_of_state({"step": 10}) is None
    assert found.problem_of_state({"step": 20, "differences": 1}) is None
