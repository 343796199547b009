"""Where a step of packed documents begins: some steps later than a place that is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from data.order.recurring_skips import RecurringSkips
from data.order.sample_order import Order
from data.order.skipped_ranges import SkippedRanges
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.cli.data.step_position import (
    SavedLoaderState,
    StepPosition,
    of_checkpoints,
    of_lives,
    of_packed,
    unsaved_change,
)
from hpckit.events.schema import MixtureChanged
from hpckit.report.history import TrainingAttempt

BLOCK = 2**24


def life(start: int, end: int, position: int | None, batch: int) -> TrainingAttempt:
    place: dict[str, Any] = {"position": position, "global_batch": batch}
    return TrainingAttempt(
        1, 0, 2, 1, start_step=start, end_step=end, started=0.0, ended=None, end="", reason="",
        restore_s=0.0, **place,
    )  # fmt: skip


def state(position: int) -> dict[str, Any]:
    return {"pack": "pack-1 length=8", "position": position}


LIVES = [life(0, 10, 0, 8), life(10, 20, BLOCK + 3, 4)]
SAVED = [SavedLoaderState(20, state(2 * BLOCK)), SavedLoaderState(10, state(BLOCK + 3))]


@pytest.mark.parametrize(
    ("step", "position", "batch", "later"),
    [(1, 0, 8, 0), (10, 0, 8, 9), (11, BLOCK + 3, 4, 0), (25, BLOCK + 3, 4, 14)],
)
def test_it_is_counted_from_the_beginning_of_its_life(
    step: int, position: int, batch: int, later: int
) -> None:
    assert of_packed(LIVES, SAVED, step, None) == StepPosition(
        SAVED[0].state, position, batch, step, later
    )


def test_or_from_the_checkpoint_before_it() -> None:
    found = of_packed([], SAVED, 13, 4)
    assert found == StepPosition(SAVED[0].state, BLOCK + 3, 4, 13, 2)
    with pytest.raises(CommandUsageError, match="step 3"):
        of_packed([], SAVED, 3, 4)


def test_what_was_left_out_is_passed() -> None:
    lives = [life(0, 20, 0, 8), life(10, 30, 80, 8)]
    assert of_lives(lives, 13) == (80, 8, 2, 16)
    assert of_lives(lives, 10) == (0, 8, 9, 72)
    assert of_lives(lives[1:], 10) is None
    saved = [
        SavedLoaderState(20, {"order": "", "position": 180, "skipped": [[100, 120]]}),
        SavedLoaderState(10, {"order": "", "position": 80}),
    ]
    found = of_checkpoints(saved, 14, None)
    assert found is not None
    assert (found.position, found.batch) == (124, 8), "the step that was kept leaves them out"
    later = of_checkpoints(saved[:1], 22, 8)
    assert later is not None
    assert later.position == 188


def test_what_is_left_out_in_a_later_epoch_is_passed() -> None:
    skipped, order = SkippedRanges([(3, 7)]), Order([50], seed=1, streams=1)
    later = RecurringSkips(skipped, order)
    state = {"order": "order-1", "skipped": skipped.to_state()}
    ends = [later.later(52, 10 * steps) for steps in (0, 4)]
    saved = [
        SavedLoaderState(14, {**state, "position": ends[1]}),
        SavedLoaderState(10, {**state, "position": ends[0]}),
    ]
    found = of_checkpoints(saved, 13, None, lambda told: later)
    assert found is not None
    assert (found.position, found.batch) == (later.later(ends[0], 20), 10)


def test_weights_that_no_checkpoint_has_yet_are_noticed() -> None:
    changed = MixtureChanged(
        time=0.0, step=10, position=80, before={}, after={}, reason="resume", generation=1
    )
    by_plan = MixtureChanged(time=0.0, step=10, before={}, after={}, reason="stage", generation=1)
    before, after = {"segments": [[0, [1]]]}, {"segments": [[0, [1]], [80, [1]]]}
    attempt = life(10, 20, 80, 8)
    assert unsaved_change([by_plan, changed], attempt, before) is changed
    assert unsaved_change([by_plan, changed], attempt, after) is None
    assert unsaved_change([changed], replace(attempt, attempt=1), before) is None
    assert unsaved_change([], attempt, {}) is None


def test_between_two_checkpoints_the_mixture_is_that_of_the_later_one() -> None:
    one = {"order": "mix-1", "position": 80, "segments": [[0, [1]]]}
    other = {"order": "mix-1", "position": 160, "segments": [[0, [1]], [80, [2]]]}
    found = of_checkpoints([SavedLoaderState(20, other), SavedLoaderState(10, one)], 12, None)
    assert found is not None
    assert found.position == 88
    assert found.state == other, "it has the weights from before, too"
