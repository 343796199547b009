"""What one rank is asked, all ranks do at the same step, however rarely they ask each other."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from checkpointing import Minutes, Steps
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.trainer.rank_agreement import CLOCK_S, PACE_S, RankAgreement, steps_between
from hpckit.trainer.run_checkpoints import limit_clock_checks
from tests.integration.rank_worlds import run_world

STEPS, HEARD = 40, 17


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.0, 1), (1.0, 1), (PACE_S, 1), (0.02, 2), (0.011, 4), (0.01, 5)]
)
def test_short_steps_are_several_to_an_exchange(step_s: float, steps: int) -> None:
    assert steps_between(step_s) == steps


def answered(rank: int, tmp: Path) -> list[int]:
    """At which step each pace lets this rank know what rank 1 hears at `HEARD`."""
    found = []
    for step_s in (1.0, 0.01, 0.02):
        agreement = RankAgreement()
        for step in range(STEPS):
            seen = WorkerRequest.PREEMPT if rank == 1 and step >= HEARD else WorkerRequest.NONE
            if agreement.exchange(step, seen) is WorkerRequest.PREEMPT:
                found.append(step)
                break
            if step == 3:
                agreement.set_step_duration(step_s)
        agreement.close()
    return found


def test_all_ranks_answer_at_the_same_step(tmp_path: Path) -> None:
    assert run_world(2, answered, tmp_path) == [[HEARD + 1, 25, 20]] * 2
    assert run_world(1, alone, tmp_path) == [HEARD]


def note(steps: list[int], step: int) -> bool:
    steps.append(step)
    return False


def asked(rank: int, tmp: Path) -> list[list[int]]:
    """After which steps of 0.1 s policies are asked whether to save; by the clock, which is an
    exchange, seldom."""
    found = []
    for every in (Minutes(1.0), Steps(7), Minutes(1.0) | Steps(7), None):
        agreement = RankAgreement()
        steps: list[int] = []
        is_due = limit_clock_checks(partial(note, steps), every, agreement.is_clock_check_due)
        agreement.set_step_duration(CLOCK_S / 5)
        for step in range(1, 13):
            is_due(step)
        agreement.close()
        found.append(steps)
    return found


def test_several_ranks_are_seldom_asked_for_the_time(tmp_path: Path) -> None:
    each = [*range(1, 13)]
    assert run_world(2, asked, tmp_path) == [[[5, 10], each, [5, 10], each]] * 2
    assert run_world(1, asked, tmp_path) == [[each] * 4]


def alone(rank: int, tmp: Path) -> int:
    agreement = RankAgreement()
    seen = (WorkerRequest.PREEMPT if step >= HEARD else WorkerRequest.NONE for step in range(STEPS))
    step = next(
        s for s, one in enumerate(seen) if agreement.exchange(s, one) is WorkerRequest.PREEMPT
    )
    agreement.close()
    return step
