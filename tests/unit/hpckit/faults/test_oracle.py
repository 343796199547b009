"""What the oracle says of losses: histories by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hpckit.events.schema import event_of
from hpckit.faults.campaign.oracle import loss_problems
from hpckit.report.history import History, build_history

STEPS = 6


def history(*lives: tuple[int, int, Mapping[int, float]]) -> History:
    """Of lives: (ranks, the step that it began after, the losses that it told)."""
    events = []
    for number, (world, start, losses) in enumerate(lives, 1):
        begun = {"generation": number, "world_size": world, "step": start}
        events.append(event_of(100.0 * number, "training_started", begun))
        events += [
            event_of(100.0 * number + step, "step", told(number, step, loss))
            for step, loss in losses.items()
        ]
    return build_history(events)


def told(generation: int, step: int, loss: float) -> dict[str, float]:
    return {"generation": generation, "step": step, "loss": loss, "step_s": 0.2}


def losses(*, of: range = range(1, STEPS + 1), **other: float) -> dict[int, float]:
    """A loss of each step `of`, but for those that are named, as in s3=math.nan."""
    return {step: other.get(f"s{step}", 1.0 / step) for step in of}


WHOLE = history((2, 0, losses()))


def test_a_loss_that_is_no_number_is_none_of_the_undisturbed_runs() -> None:
    found = loss_problems(history((2, 0, losses(s3=math.nan))), WHOLE, STEPS)
    assert found == [f"step 3: loss nan, and {1 / 3!r} undisturbed"]
    mine = history((2, 0, losses(of=range(1, 3))), (1, 2, losses(of=range(3, 7), s5=math.nan)))
    assert len(loss_problems(mine, WHOLE, STEPS)) == 1
    none = history((2, 0, losses(s3=math.nan)))
    assert len(loss_problems(none, none, STEPS)) == 1


def test_losses_are_exact_until_other_ranks_train() -> None:
    def after_step_4(**other: float) -> History:
        first = losses(of=range(1, 5), **other)
        return history((2, 0, first), (1, 4, losses(of=range(5, 7), **other)))

    assert loss_problems(after_step_4(), WHOLE, STEPS) == []
    assert loss_problems(after_step_4(s6=1 / 6 + 1e-6), WHOLE, STEPS) == []
    assert len(loss_problems(after_step_4(s6=1 / 6 + 1e-2), WHOLE, STEPS)) == 1
    (found,) = loss_problems(after_step_4(s2=0.5 + 1e-6), WHOLE, STEPS)
    assert found.startswith("step 2: ")


def test_what_other_ranks_trained_in_vain_does_not_count() -> None:
    first, again = losses(of=range(1, 5)), losses(of=range(4, 7), s5=1 / 5 + 1e-6)
    in_vain = (1, 3, losses(of=range(4, 6)))
    (found,) = loss_problems(history((2, 0, first), in_vain, (2, 3, again)), WHOLE, STEPS)
    assert found.startswith("step 5: ")
    assert loss_problems(history((2, 0, first), in_vain, (2, 4, again)), WHOLE, STEPS) == []
