"""The board: requests down, heartbeats up, between real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from unittest import mock

import pytest

from hpckit.ipc.heartbeat_table import HeartbeatTable, WorkerPhase, WorkerRequest
from tests.unit.hpckit.specs_and_processes import line_of, python

WORKER = """
import sys; from hpckit.ipc.heartbeat_table import HeartbeatTable, WorkerPhase
board = HeartbeatTable.attach(sys.argv[1], 3)
board.report(int(sys.argv[2]), WorkerPhase.TRAINING, 41, 2)
print("there", flush=True); sys.stdin.readline()
print(board.request().name, 0 < board.seconds_left() <= 1000, flush=True)
"""
REPORTER = """
import sys; from hpckit.ipc.heartbeat_table import HeartbeatTable, WorkerPhase, WorkerRequest
board = HeartbeatTable.attach(sys.argv[1], 1)
for step in range(1, 100_001):
    board.report(0, WorkerPhase.TRAINING, step, 1)
    board.ask(WorkerRequest.PREEMPT, within_s=1000)
    if step == 1: print("there", flush=True)
print("done", flush=True); sys.stdin.readline()
"""
AGENT = """
import sys; from hpckit.ipc.heartbeat_table import HeartbeatTable
board, path = HeartbeatTable.create(2)
print(path, flush=True); sys.stdin.readline()
"""


def test_heartbeats_go_up_and_requests_go_down() -> None:
    board, path = HeartbeatTable.create(3)
    with python(WORKER, path, 1) as worker:
        assert line_of(worker) == "there"
        untouched, slot, _ = board.slots()
        assert (slot.pid, slot.phase, slot.step) == (worker.pid, WorkerPhase.TRAINING, 41)
        assert slot.attempt == 2
        assert slot.beat > 0
        assert (untouched.pid, untouched.phase, untouched.beat) == (0, WorkerPhase.STARTING, 0.0)
        board.ask(WorkerRequest.PREEMPT, within_s=1000)
        assert worker.communicate("\n")[0].strip() == "PREEMPT True"


def test_slots_do_not_touch_one_another() -> None:
    board, _ = HeartbeatTable.create(5)
    for rank in range(5):
        board.report(rank, WorkerPhase(rank), step=10**15 + rank, attempt=rank)
    for rank, slot in enumerate(board.slots()):
        assert (slot.pid, slot.phase, slot.step) == (os.getpid(), WorkerPhase(rank), 10**15 + rank)
        assert slot.attempt == rank
    assert board.request() is WorkerRequest.NONE


def test_a_row_that_is_being_written_is_read_without_zeros() -> None:
    board, path = HeartbeatTable.create(1)
    begun_s = time.monotonic()
    with python(REPORTER, path) as worker:
        assert line_of(worker) == "there"
        (slot,) = board.slots()
        while slot.step < 100_000:
            (slot,) = board.slots()
            found = (slot.pid, slot.phase, slot.attempt, board.request())
            assert found == (worker.pid, WorkerPhase.TRAINING, 1, WorkerRequest.PREEMPT)
            assert slot.step > 0
            assert slot.beat > begun_s
            assert board.seconds_left() > 0


def test_a_worker_that_is_started_again_between_two_reads_has_no_phase_with_the_pid_before() -> (
    None
):
    board, path = HeartbeatTable.create(1)
    worker = HeartbeatTable.attach(path, 1)
    with mock.patch.object(os, "getpid", return_value=1):
        worker.report(0, WorkerPhase.TRAINING, 7, 1)

    class Interrupted:
        """The integers of the table; after the first read of one, the next worker reports."""

        def __init__(self, integers: Sequence[int]) -> None:
            self._integers, self._reads = integers, 0

        def __getitem__(self, at: int) -> int:
            found, self._reads = self._integers[at], self._reads + 1
            if self._reads == 1:
                worker.report(0, WorkerPhase.STARTING, 0, 2)
            return found

    with mock.patch.object(board, "_integers", Interrupted(board._integers)):
        (slot,) = board.slots()
    assert (slot.pid, slot.phase, slot.attempt) == (os.getpid(), WorkerPhase.TRAINING, 2)


def test_a_later_request_replaces_an_earlier_one_and_its_deadline() -> None:
    board, path = HeartbeatTable.create(1)
    worker = HeartbeatTable.attach(path, 1)
    assert worker.request() is WorkerRequest.NONE
    board.ask(WorkerRequest.PREEMPT, within_s=1000)
    assert worker.request() is WorkerRequest.PREEMPT
    assert worker.seconds_left() > 0
    board.ask(WorkerRequest.STOP, within_s=-1)
    assert worker.request() is WorkerRequest.STOP
    assert worker.seconds_left() < 0


def test_the_board_of_a_dead_agent_cannot_be_attached_to() -> None:
    with python(AGENT) as agent:
        path = line_of(agent)
        assert len(HeartbeatTable.attach(path, 2).slots()) == 2
        agent.kill()
        agent.wait()
        with pytest.raises(OSError):
            HeartbeatTable.attach(path, 2)


def test_a_board_outlives_its_agent_for_those_who_hold_it() -> None:
    with python(AGENT) as agent:
        board = HeartbeatTable.attach(line_of(agent), 2)
        agent.kill()
        agent.wait()
        board.report(1, WorkerPhase.DONE, 5, 0)
        assert board.slots()[1].phase is WorkerPhase.DONE


def test_a_board_is_its_users_alone() -> None:
    _, path = HeartbeatTable.create(1)
    assert os.stat(path).st_mode & 0o777 == 0o600  # noqa: PTH116 (Path would follow the name)


def test_the_deadline_of_a_program_outlasts_its_heartbeats() -> None:
    board, path = HeartbeatTable.create(2)
    worker = HeartbeatTable.attach(path, 2)
    worker.report_memory(1, 7)
    worker.report_deadline(1, 123.5)
    worker.report(1, WorkerPhase.RUNNING, 3, 0)
    other, slot = board.slots()
    assert (slot.deadline, slot.memory, slot.step, other.deadline) == (123.5, 7, 3, 0.0)
