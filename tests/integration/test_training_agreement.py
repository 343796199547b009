"""What one rank is asked, all ranks do at the same step, however rarely they ask each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.run.board import Request
from hpckit.training.agreement import PACE_S, Agreement, steps_between
from tests.integration.worlds import run_world

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
        agreement = Agreement()
        for step in range(STEPS):
            seen = Request.PREEMPT if rank == 1 and step >= HEARD else Request.NONE
            if agreement.exchange(step, seen) is Request.PREEMPT:
                found.append(step)
                break
            if step == 3:
                agreement.pace(step_s)
        agreement.close()
    return found


def test_all_ranks_answer_at_the_same_step(tmp_path: Path) -> None:
    assert run_world(2, answered, tmp_path) == [[HEARD + 1, 25, 20]] * 2
    assert run_world(1, alone, tmp_path) == [HEARD]


def alone(rank: int, tmp: Path) -> int:
    agreement = Agreement()
    seen = (Request.PREEMPT if step >= HEARD else Request.NONE for step in range(STEPS))
    step = next(s for s, one in enumerate(seen) if agreement.exchange(s, one) is Request.PREEMPT)
    agreement.close()
    return step
