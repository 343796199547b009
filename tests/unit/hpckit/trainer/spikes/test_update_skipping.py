"""Which updates are left out, what a left out step leaves behind, and when it was too often."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from hpckit.events.earlier_events import EarlierEvents
from hpckit.events.schema import UpdateSkipped, event_of
from hpckit.events.skipped_updates import skipped_updates
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.precision.loss_scale import LossScale
from hpckit.trainer.spikes import update_skipping
from hpckit.trainer.spikes.spike_detection import LEAST, SpikeDetector
from hpckit.trainer.spikes.update_skipping import MomentCopies, UpdateSkipper, are_too_many


@pytest.fixture
def skipper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> UpdateSkipper:
    """It knows enough steps, and may leave out two updates in ten steps; without other ranks."""
    monkeypatch.setattr(update_skipping, "rows_of_rank_0", lambda rows, width: rows)
    monkeypatch.setattr(update_skipping, "barrier", lambda: None)
    emitted: list[UpdateSkipped] = []
    context = SimpleNamespace(
        cfg=SimpleNamespace(heal=SimpleNamespace(most=2, within=10)),
        emit_once=emitted.append,
        emitted=emitted,
    )
    detector = SpikeDetector(8, 128)
    detector.load({"loss": [2.0, 2.1] * LEAST})
    earlier = EarlierEvents(tmp_path / "events.jsonl", is_reader=True)
    source = cast(Any, SimpleNamespace(position=8))
    made = UpdateSkipper(cast(Any, context), source, detector, earlier)
    made.begin(0, [])
    return made


def told(skipper: UpdateSkipper) -> list[UpdateSkipped]:
    return cast(Any, skipper)._context.emitted  # type: ignore[no-any-return]


def decide(skipper: UpdateSkipper, step: int, loss: float) -> bool:
    skipper.begin_step(step, 4)
    is_update = skipper.decide({"loss": loss})
    assert skipper.end_step() is not is_update
    return is_update


def test_an_outlier_is_left_out_and_an_event_says_its_samples(skipper: UpdateSkipper) -> None:
    assert [decide(skipper, step, loss) for step, loss in enumerate((2.0, 9.0, 2.1), 1)] == [
        *(True, False, True)
    ]
    (event,) = told(skipper)
    assert (event.step, event.first_position, event.end_position) == (2, 4, 8)
    assert event.is_skipped
    assert "loss is 9, above the limit" in event.what


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_what_is_not_finite_is_left_out_from_the_first_step_on(
    skipper: UpdateSkipper, loss: float
) -> None:
    cast(Any, skipper)._detector.load({})
    assert not decide(skipper, 1, loss)


def test_a_collapsed_loss_scale_leaves_no_update_out(skipper: UpdateSkipper) -> None:
    cast(Any, skipper)._detector.load({"loss": [2.0] * LEAST, "loss_scale": [65536.0] * LEAST})
    skipper.begin_step(1, 4)
    assert skipper.decide({"loss": 2.0, "grad_norm": 1.0, "loss_scale": 128.0})
    assert told(skipper) == []


def test_too_many_end_the_run_and_say_so(skipper: UpdateSkipper) -> None:
    assert [decide(skipper, step, 9.0) for step in (1, 4, 14, 15)] == [False] * 4, "far apart"
    with pytest.raises(TrainingError, match=r"2 updates were left out within 10 steps already"):
        decide(skipper, 16, 9.0)
    assert [event.is_skipped for event in told(skipper)] == [True] * 4 + [False]


def test_a_step_in_which_nobody_asks_or_two_ask_is_an_error(skipper: UpdateSkipper) -> None:
    skipper.begin_step(1, None)
    with pytest.raises(TrainingError, match=r"did not call run\.should_update in step 1"):
        skipper.end_step()
    skipper.decide({"loss": 2.0})
    with pytest.raises(TrainingError, match="called twice in step 1"):
        skipper.decide({"loss": 2.0})


def test_a_resumed_attempt_forgets_what_is_computed_again(skipper: UpdateSkipper) -> None:
    cast(Any, skipper)._skipped = [3, 8, 9]
    skipper.begin(8, [])
    assert cast(Any, skipper)._skipped == [3, 8]


def test_the_limit_counts_steps_before_this_one() -> None:
    assert are_too_many([1, 5], 10, most=2, within=10)
    assert not are_too_many([1, 5], 11, most=2, within=10)
    assert not are_too_many([12, 13], 11, most=2, within=10)


def test_running_moments_are_as_before_the_step() -> None:
    norm = nn.BatchNorm1d(2)
    model = nn.Sequential(nn.Linear(2, 2), norm)
    model(torch.randn(4, 2))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    copies = MomentCopies([model])
    copies.take()
    model(torch.full((4, 2), math.nan))
    assert norm.running_mean is not None
    assert not norm.running_mean.isfinite().all()
    copies.restore()
    assert len(before) == 3
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_the_loss_scale_follows_a_step_without_an_update() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    optimizer, scale = torch.optim.SGD([parameter], lr=1.0), LossScale(is_used=True)
    scale.step(optimizer, torch.tensor(1.0), is_update=False)
    assert parameter.item() == 0
    assert scale.state_dict() == {"value": 65536.0, "good": 1, "skipped": 0}
    scale.step(optimizer, torch.tensor(math.nan), is_update=False)
    assert scale.present == {"loss_scale": 32768.0}


def test_what_is_computed_again_counts_only_if_it_is_left_out_again() -> None:
    begin = {"generation": 1, "world_size": 1, "samples": 300}

    def skip(time: float, step: int, is_skipped: bool = True) -> Any:
        return event_of(
            time, "update_skipped", {"step": step, "what": "", "is_skipped": is_skipped}
        )

    events = [
        event_of(0.0, "training_started", {**begin, "step": 0}),
        *(skip(1.0, 3), skip(2.0, 8), skip(2.5, 9)),
        event_of(3.0, "training_started", {**begin, "step": 5}),
        *(skip(4.0, 8), skip(5.0, 12, is_skipped=False)),
    ]
    found = skipped_updates(events)
    assert [*found] == [3, 8]
    assert found[8].time == 4.0
