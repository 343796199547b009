"""What an agent concludes from its board."""

from __future__ import annotations

import pytest

from hpckit.agent.exit_report import NodeExit
from hpckit.agent.hangs.hang_detection import (
    attempts,
    confirmed_lost,
    hung_workers,
    lost_workers,
    node_exit,
    peers_of_programs,
    refused,
    silent_workers,
    steps_finished,
)
from hpckit.config.spec import HangSpec
from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase, WorkerRequest

STARTING, TRAINING, DONE = WorkerPhase.STARTING, WorkerPhase.TRAINING, WorkerPhase.DONE
LEFT, FAILED, REFUSED = WorkerPhase.LEFT, WorkerPhase.FAILED, WorkerPhase.REFUSED
RUNNING, REPLACED = WorkerPhase.RUNNING, WorkerPhase.REPLACED
NONE, PREEMPT, STOP = WorkerRequest.NONE, WorkerRequest.PREEMPT, WorkerRequest.STOP


def slots(*phases: WorkerPhase) -> list[Heartbeat]:
    return [Heartbeat(100 + n, phase, 10 + n, 1.0, n) for n, phase in enumerate(phases)]


@pytest.mark.parametrize(
    ("phases", "returncode", "request_", "expected"),
    [
        ((DONE, DONE), 0, NONE, NodeExit.DONE),
        ((DONE, DONE), 0, PREEMPT, NodeExit.DONE),
        ((DONE, DONE), 1, NONE, NodeExit.FAILED),
        ((LEFT, LEFT), 0, PREEMPT, NodeExit.LEFT),
        ((LEFT, LEFT), 0, STOP, NodeExit.LEFT),
        ((DONE, LEFT), 0, PREEMPT, NodeExit.LEFT),
        ((LEFT, LEFT), 0, NONE, NodeExit.FAILED),
        ((LEFT, LEFT), 1, PREEMPT, NodeExit.FAILED),
        ((DONE, TRAINING), 0, NONE, NodeExit.FAILED),
        ((TRAINING, TRAINING), 0, PREEMPT, NodeExit.FAILED),
        ((STARTING, STARTING), 0, NONE, NodeExit.FAILED),
        ((FAILED, TRAINING), 1, NONE, NodeExit.FAILED),
        ((TRAINING, REFUSED), 1, NONE, NodeExit.REFUSED),
        ((DONE, REFUSED), 0, PREEMPT, NodeExit.REFUSED),
        ((TRAINING,), -9, NONE, NodeExit.FAILED),
        ((RUNNING, DONE), 0, NONE, NodeExit.DONE),
        ((RUNNING, LEFT), 0, PREEMPT, NodeExit.LEFT),
        ((RUNNING, DONE), 1, NONE, NodeExit.FAILED),
        ((RUNNING, REPLACED), 0, NONE, NodeExit.DONE),
        ((REPLACED, DONE), 0, PREEMPT, NodeExit.LEFT),
        ((REPLACED, DONE), 1, NONE, NodeExit.FAILED),
    ],
)
def test_how_a_node_ended(
    phases: tuple[WorkerPhase, ...], returncode: int, request_: WorkerRequest, expected: NodeExit
) -> None:
    assert node_exit(slots(*phases), returncode, request_) is expected


def test_a_worker_is_lost_if_it_is_gone_and_never_said_why() -> None:
    board = [*slots(STARTING, TRAINING, DONE, LEFT, FAILED, REFUSED, TRAINING)]
    found = lost_workers(board, alive=lambda pid: pid == 106)
    assert found == {0: board[0], 1: board[1]}


def test_who_ends_between_the_reading_of_its_heartbeat_and_of_its_process_is_not_lost() -> None:
    board = slots(TRAINING, TRAINING, TRAINING)
    lost = lost_workers(board, alive=lambda pid: False)
    later = [*slots(DONE, TRAINING), Heartbeat(7, STARTING, 0, 2.0, 1)]  # the third was replaced
    assert confirmed_lost(lost, later) == {1: board[1], 2: board[2]}


def test_who_is_silent_for_longer_than_its_phase_may_take_hangs() -> None:
    limits = HangSpec(step_s=5.0, first_step_s=20.0, start_s=30.0, validate_s=40.0, save_s=50.0)
    board = slots(
        STARTING, WorkerPhase.RESUMED, TRAINING, WorkerPhase.SAVING, DONE, LEFT, FAILED, REFUSED
    )
    board += [*slots(WorkerPhase.VALIDATING), Heartbeat(0, STARTING, 0, 0.0, 0)]
    assert hung_workers(board, 6.0, limits) == {}
    order = [2, 1, 0, 8, 3]  # training, first step, start, validation, save
    for count, now_s in enumerate((6.1, 21.1, 31.1, 41.1, 51.1), start=1):
        assert sorted(hung_workers(board, now_s, limits)) == sorted(order[:count])
    assert len(hung_workers(board, 1e9, limits)) == 5, "who never said a word is no one yet"
    nobody = HangSpec(step_s=None, first_step_s=None, start_s=None, validate_s=None, save_s=None)
    assert hung_workers(board, 1e9, nobody) == {}


def test_a_slot_that_no_worker_has_taken_is_not_lost() -> None:
    empty = Heartbeat(0, STARTING, 0, 0.0, 0)
    assert lost_workers([empty], alive=lambda pid: False) == {}
    assert silent_workers([empty, *slots(DONE, TRAINING, FAILED)]) == [0, 2]


def test_a_node_is_as_far_as_its_slowest_worker() -> None:
    assert steps_finished(slots(TRAINING, TRAINING, TRAINING)) == 10
    assert steps_finished([]) == 0


def test_attempts_and_refusals_are_those_of_any_worker() -> None:
    assert attempts(slots(TRAINING, TRAINING)) == 1
    assert attempts([]) == 0
    assert refused(slots(TRAINING, REFUSED))
    assert not refused(slots(TRAINING, FAILED, DONE, LEFT))


def test_a_program_is_hung_at_its_deadline_and_its_peers_may_show_why() -> None:
    limits = HangSpec(step_s=1, first_step_s=1, start_s=1, validate_s=1, save_s=1)
    board = [
        Heartbeat(100, WorkerPhase.RUNNING, 9, 1.0, 0, deadline=50.0),
        Heartbeat(101, WorkerPhase.RUNNING, 0, 1.0, 0),
        Heartbeat(102, DONE, 9, 1.0, 0, deadline=50.0),
    ]
    assert hung_workers(board, 49.0, limits) == {}
    hung = hung_workers(board, 51.0, limits)
    assert hung == {0: board[0]}
    assert peers_of_programs(board, hung) == {1: board[1]}
    assert peers_of_programs(board, {0: Heartbeat(100, TRAINING, 9, 1.0, 0)}) == {}


def test_of_some_programs_only_rank_0_tells_the_steps() -> None:
    board = [Heartbeat(100 + n, WorkerPhase.RUNNING, step, 1.0, 0) for n, step in enumerate((9, 0))]
    assert steps_finished(board) == 0
    assert steps_finished(board, is_of_rank_0=True) == 9
