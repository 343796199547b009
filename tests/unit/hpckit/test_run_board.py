"""The board: requests down, heartbeats up, between real processes."""

from __future__ import annotations

import os

import pytest

from hpckit.run.board import Board, Phase, Request
from tests.unit.hpckit.hpckit_parts import line_of, python

WORKER = """
import sys; from hpckit.run.board import Board, Phase
board = Board.attach(sys.argv[1], 3)
board.report(int(sys.argv[2]), Phase.TRAINING, 41, 2)
print("there", flush=True); sys.stdin.readline()
print(board.request().name, 0 < board.seconds_left() <= 1000, flush=True)
"""
AGENT = """
import sys; from hpckit.run.board import Board
board, path = Board.create(2)
print(path, flush=True); sys.stdin.readline()
"""


def test_heartbeats_go_up_and_requests_go_down() -> None:
    board, path = Board.create(3)
    with python(WORKER, path, 1) as worker:
        assert line_of(worker) == "there"
        untouched, slot, _ = board.slots()
        assert (slot.pid, slot.phase, slot.step) == (worker.pid, Phase.TRAINING, 41)
        assert slot.attempt == 2
        assert slot.beat > 0
        assert (untouched.pid, untouched.phase, untouched.beat) == (0, Phase.STARTING, 0.0)
        board.ask(Request.PREEMPT, within_s=1000)
        assert worker.communicate("\n")[0].strip() == "PREEMPT True"


def test_slots_do_not_touch_one_another() -> None:
    board, _ = Board.create(5)
    for rank in range(5):
        board.report(rank, Phase(rank), step=10**15 + rank, attempt=rank)
    for rank, slot in enumerate(board.slots()):
        assert (slot.pid, slot.phase, slot.step) == (os.getpid(), Phase(rank), 10**15 + rank)
        assert slot.attempt == rank
    assert board.request() is Request.NONE


def test_a_later_request_replaces_an_earlier_one_and_its_deadline() -> None:
    board, path = Board.create(1)
    worker = Board.attach(path, 1)
    assert worker.request() is Request.NONE
    board.ask(Request.PREEMPT, within_s=1000)
    assert worker.request() is Request.PREEMPT
    assert worker.seconds_left() > 0
    board.ask(Request.STOP, within_s=-1)
    assert worker.request() is Request.STOP
    assert worker.seconds_left() < 0


def test_the_board_of_a_dead_agent_cannot_be_attached_to() -> None:
    with python(AGENT) as agent:
        path = line_of(agent)
        assert len(Board.attach(path, 2).slots()) == 2
        agent.kill()
        agent.wait()
        with pytest.raises(OSError):
            Board.attach(path, 2)


def test_a_board_outlives_its_agent_for_those_who_hold_it() -> None:
    with python(AGENT) as agent:
        board = Board.attach(line_of(agent), 2)
        agent.kill()
        agent.wait()
        board.report(1, Phase.DONE, 5, 0)
        assert board.slots()[1].phase is Phase.DONE


def test_a_board_is_its_users_alone() -> None:
    _, path = Board.create(1)
    assert os.stat(path).st_mode & 0o777 == 0o600  # noqa: PTH116 (Path would follow the name)
