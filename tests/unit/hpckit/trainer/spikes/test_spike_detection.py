"""What is an outlier among the steps of a run, and what is not."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.trainer.spikes.spike_detection import LEAST, SpikeDetector, judge

FINITE = st.floats(-1e6, 1e6)


def curve(steps: int, seed: int = 1) -> list[float]:
    """A loss that falls as losses do, with noise of a tenth of what is left."""
    draw = random.Random(seed)
    return [2 + 4 * math.exp(-step / 200) + draw.gauss(0, 0.2) for step in range(steps)]


def outliers(values: list[float], name: str = "loss", deviations: float = 8.0) -> list[int]:
    detector = SpikeDetector(deviations, window=128)
    return [step for step, value in enumerate(values) if detector.update({name: value})]


@pytest.mark.parametrize("seed", range(5))
def test_a_falling_noisy_loss_has_no_outlier(seed: int) -> None:
    assert outliers(curve(2000, seed)) == []


@pytest.mark.parametrize("at", [LEAST, 40, 700, 1999])
def test_a_jump_is_an_outlier_and_moves_no_limit(at: int) -> None:
    values = curve(2000)
    for step in range(at, min(at + 60, 2000)):
        values[step] += 4
    assert outliers(values) == [*range(at, min(at + 60, 2000))]


def test_a_fall_is_none_however_deep() -> None:
    assert outliers([5.0, 5.1] * 50 + [0.01] * 5) == []


def test_norms_are_compared_by_factors() -> None:
    values = [1.0, 2.0, 0.5] * 30
    assert outliers([*values, 30.0, 1.0], "grad_norm") == []
    assert outliers([*values, 1e5, 1.0], "grad_norm") == [90]
    assert outliers([0.0] * 40 + [3.0], "grad_norm") == [], "of nothing, nothing is a factor"


def test_a_loss_scale_that_is_halved_eight_times_has_collapsed() -> None:
    falling = [65536.0 / 2**halved for halved in range(12)]
    assert outliers([65536.0] * 30 + falling, "loss_scale") == [30 + 9, 30 + 10, 30 + 11]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_always_an_outlier(value: float) -> None:
    (found,) = SpikeDetector(8, 128).update({"loss": value})
    assert found.is_final
    assert str(found) == f"loss is {value}"


def test_gradients_that_overflow_in_fp16_are_left_to_the_loss_scale() -> None:
    detector = SpikeDetector(8, 128)
    detector.update({"loss_scale": 65536.0, "grad_norm": 1.0})
    assert detector.update({"loss_scale": 32768.0, "grad_norm": math.inf}) == ()


def test_an_overflow_in_the_first_step_is_left_to_the_loss_scale_too() -> None:
    assert SpikeDetector(8, 128).update({"grad_norm": math.inf, "loss_scale": 65536.0}) == ()


def test_a_detector_that_is_loaded_judges_as_the_one_that_was_saved() -> None:
    whole, first, second = (SpikeDetector(8, 32) for _ in range(3))
    values = curve(60)
    values[45] += 9
    found = [whole.update({"loss": value}) for value in values]
    for value in values[:40]:
        first.update({"loss": value})
    second.load(json.loads(json.dumps(first.saved)))
    assert [second.update({"loss": value}) for value in values[40:]] == found[40:]
    assert found[45]


def test_a_shorter_window_takes_the_newest_values() -> None:
    detector = SpikeDetector(8, 16)
    detector.load({"loss": range(20)})
    assert detector.saved["loss"] == [float(value) for value in range(4, 20)]


def test_the_text_says_the_limit() -> None:
    (found,) = (judge("loss", 9.0, [2.0] * 20, 8.0),)
    assert str(found) == "loss is 9, above the limit 2.16"
    (found,) = (judge("loss_scale", 1.0, [512.0] * 20, 8.0),)
    assert str(found) == "loss_scale is 1, below the limit 2"


@given(st.lists(FINITE, min_size=LEAST, max_size=40), st.floats(3, 100))
def test_no_value_below_the_median_is_an_outlier(known: list[float], deviations: float) -> None:
    assert judge("loss", sorted(known)[(len(known) - 1) // 2], known, deviations) is None


@given(st.lists(FINITE, max_size=LEAST - 1), FINITE)
def test_too_few_steps_judge_nothing(known: list[float], value: float) -> None:
    assert judge("loss", value, known, 3.0) is None
