"""What a program reports reaches the heartbeat table and the events, and requests reach it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.events.event_log import read_events
from hpckit.events.schema import CheckpointReported, StepLogged, TrainingStarted
from hpckit.ipc import program_session
from hpckit.ipc.heartbeat_table import HeartbeatTable, WorkerPhase, WorkerRequest
from hpckit.ipc.process_environment import NodeEnvironment, worker_variables
from hpckit.ipc.program_session import ProgramSession, decoded, encoded
from hpckit.rundir.directory import RunDir

MESSAGES = st.tuples(st.integers(0, 2), st.floats(0, 300))
"""A request, and the seconds between two calls."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(program_session, "time", clock)
    return clock


@pytest.fixture
def table() -> tuple[HeartbeatTable, str]:
    return HeartbeatTable.create(1)


def session_in(run: Path, path: str, rank: int = 0, world: int = 1) -> ProgramSession:
    at = NodeEnvironment(RunDir(run), submission=1, generation=2, node=0, nodes=1)
    ranks = {"RANK": rank, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "WORLD_SIZE": world}
    env = {name: str(value) for name, value in ranks.items()}
    env |= {"TORCHELASTIC_RESTART_COUNT": "0", "HPCKIT_ATTEMPT": "3"}
    return ProgramSession.from_env(env | at.to_env() | worker_variables("cpu", path))


def test_each_step_is_a_heartbeat_and_one_per_second_a_record(
    tmp_path: Path, table: tuple[HeartbeatTable, str], clock: Clock
) -> None:
    session = session_in(tmp_path, table[1])
    for step in range(11, 31):
        clock.now_s += 0.25
        session.report_step(step, {"loss": 1 / step, "samples": 8})
        (slot,) = table[0].slots()
        assert (slot.pid, slot.phase, slot.step) == (os.getpid(), WorkerPhase.TRAINING, step)
    session.close()
    started, *steps = read_events(tmp_path / "events.jsonl")
    assert isinstance(started, TrainingStarted)
    assert (started.step, started.world_size, started.get("attempt")) == (10, 1, 3)
    assert [event["step"] for event in steps] == [11, 15, 19, 23, 27, 30]
    assert all(isinstance(event, StepLogged) for event in steps)
    assert [event["step_s"] for event in steps[1:]] == [0.25] * 4 + [0.25]
    assert [event["samples_per_s"] for event in steps[1:]] == [32.0] * 5
    assert steps[-1]["loss"] == 1 / 30


def test_slow_steps_are_recorded_one_by_one(
    tmp_path: Path, table: tuple[HeartbeatTable, str], clock: Clock
) -> None:
    session = session_in(tmp_path, table[1])
    for step in (1, 2, 3):
        clock.now_s += 5
        session.report_step(step, {})
    session.close()
    assert [e["step"] for e in read_events(tmp_path / "events.jsonl")[1:]] == [1, 2, 3]


def test_the_time_of_a_step_is_divided_if_the_program_reports_a_phase(
    tmp_path: Path, table: tuple[HeartbeatTable, str], clock: Clock
) -> None:
    session = session_in(tmp_path, table[1])
    for step, phases in ((1, {}), (2, {"data_wait_s": 1.5, "forward_s": 0.5}), (3, {})):
        clock.now_s += 5
        session.report_step(step, phases)
    session.close()
    found = [event.get("other_s") for event in read_events(tmp_path / "events.jsonl")[1:]]
    assert found == [None, 3.0, None]


def test_only_rank_0_writes_events(tmp_path: Path, table: tuple[HeartbeatTable, str]) -> None:
    session = session_in(tmp_path, table[1], rank=1, world=2)
    session.report_step(1, {"loss": 2.0})
    session.report_checkpoint(1)
    session.close()
    assert read_events(tmp_path / "events.jsonl") == []
    assert table[0].slots()[0].step == 1


def test_a_metric_is_read_only_when_it_is_recorded(
    tmp_path: Path, table: tuple[HeartbeatTable, str], clock: Clock
) -> None:
    class OnDevice:
        reads = 0

        def __float__(self) -> float:
            self.reads += 1
            return 0.5

    session, loss = session_in(tmp_path, table[1]), OnDevice()
    for step in range(1, 101):
        clock.now_s += 0.1
        session.report_step(step, {"loss": loss})
    assert loss.reads == 10


def test_a_checkpoint_of_the_program(tmp_path: Path, table: tuple[HeartbeatTable, str]) -> None:
    session = session_in(tmp_path, table[1])
    session.report_checkpoint(40)
    (event,) = read_events(tmp_path / "events.jsonl")
    assert isinstance(event, CheckpointReported)
    assert event.step == 40


def test_a_request_and_its_deadline(tmp_path: Path, table: tuple[HeartbeatTable, str]) -> None:
    session = session_in(tmp_path, table[1])
    assert not session.should_stop()
    assert session.seconds_left() is None
    table[0].ask(WorkerRequest.PREEMPT, within_s=1000)
    assert session.should_stop()
    assert session.should_stop(), "it stays so"
    left_s = session.seconds_left()
    assert left_s is not None
    assert 0 < left_s <= 1000
    table[0].ask(WorkerRequest.STOP, within_s=-1)
    assert session.seconds_left() == 0


def test_phases_end_with_the_block(tmp_path: Path, table: tuple[HeartbeatTable, str]) -> None:
    session = session_in(tmp_path, table[1])
    session.report_step(1, {})
    with suppress(ValueError), session.phase(WorkerPhase.VALIDATING):
        assert table[0].slots()[0].phase is WorkerPhase.VALIDATING
        raise ValueError("an error in the block")
    assert table[0].slots()[0].phase is WorkerPhase.TRAINING


def test_output_counts_only_until_the_program_speaks_for_itself(
    tmp_path: Path, table: tuple[HeartbeatTable, str]
) -> None:
    table[0].report(0, WorkerPhase.RUNNING, 0, 0)
    session = session_in(tmp_path, table[1])
    session.report_output(5, {"loss": 1.0})
    (slot,) = table[0].slots()
    assert (slot.phase, slot.step) == (WorkerPhase.RUNNING, 5), "no hang is looked for"
    session.report_step(6, {})
    session.report_output(2, {})
    assert table[0].slots()[0].step == 6


@given(MESSAGES, MESSAGES)
def test_the_larger_number_has_the_stronger_request(
    one: tuple[int, float], other: tuple[int, float]
) -> None:
    assert encoded(*one) < 2**31
    request, seconds = decoded(max(encoded(*one), encoded(*other)))
    assert request == max(one[0], other[0])
    longest = max(s for r, s in (one, other) if r == request)
    assert abs(seconds - min(longest, (2**28 - 1) / 1e6)) < 1e-5


def test_a_phase_ends_with_the_phase_before_it(
    tmp_path: Path, table: tuple[HeartbeatTable, str]
) -> None:
    session = session_in(tmp_path, table[1])
    table[0].report(0, WorkerPhase.RUNNING, 0, 0)
    with session.phase(WorkerPhase.VALIDATING):  # before the first step
        with session.phase(WorkerPhase.SAVING):
            assert table[0].slots()[0].phase is WorkerPhase.SAVING
        assert table[0].slots()[0].phase is WorkerPhase.VALIDATING
    assert table[0].slots()[0].phase is WorkerPhase.RUNNING
    session.close()


def test_what_follows_training_is_not_watched(
    tmp_path: Path, table: tuple[HeartbeatTable, str]
) -> None:
    session = session_in(tmp_path, table[1])
    session.report_step(3, {})
    session.report_end()
    with session.phase(WorkerPhase.VALIDATING):  # of the trained model
        pass
    slot = table[0].slots()[0]
    assert (slot.phase, slot.step) == (WorkerPhase.RUNNING, 3)
    session.close()
