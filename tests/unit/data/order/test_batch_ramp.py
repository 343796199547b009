"""The ramp of the batch size, against an enumeration of the rule of Megatron-LM."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import BatchRamp


@st.composite
def ramps(draw: st.DrawFn) -> BatchRamp:
    start, increment = draw(st.integers(1, 20)), draw(st.integers(1, 9))
    size = start + increment * draw(st.integers(1, 8))
    return BatchRamp(start, increment, draw(st.integers(1, 400)), size)


def enumerated(ramp: BatchRamp, seen: int, steps: int) -> list[tuple[int, int]]:
    """(samples before it, its samples) of each step: a size applies from its share of the ramp's
    samples on."""
    found, count = [], (ramp.size - ramp.start) // ramp.increment
    for _ in range(steps):
        grown = sum(seen * count >= number * ramp.samples for number in range(1, count + 1))
        size = ramp.start + grown * ramp.increment
        found.append((seen, size))
        seen += size
    return found


@given(ramps(), st.integers(0, 500), st.integers(0, 60), st.integers(0, 150))
def test_steps_are_those_of_the_enumeration(
    ramp: BatchRamp, seen: int, steps: int, further: int
) -> None:
    each = enumerated(ramp, seen, steps + 200)
    assert all(ramp.size_at(before) == size for before, size in each)
    assert ramp.after(seen, steps) == each[steps][0]
    assert ramp.steps_between(seen, seen + further) == sum(
        before < seen + further for before, _ in each
    )
    by_stage: list[int] = []
    for size, count in ramp.stages(seen):
        by_stage += [size] * (200 if count is None else count)
    assert by_stage[:200] == [size for _, size in each[:200]]


@given(ramps(), st.integers(0, 40), st.integers(0, 40))
def test_a_resume_in_the_middle_changes_no_step(ramp: BatchRamp, first: int, then: int) -> None:
    assert ramp.after(ramp.after(0, first), then) == ramp.after(0, first + then)


def test_the_example_of_megatron() -> None:
    ramp = BatchRamp(16, 8, 300, 40)  # --rampup-batch-size 16 8 300 --global-batch-size 40
    sizes = [size for _, size in enumerated(ramp, 0, 20)]
    assert sizes == [16] * 7 + [24] * 4 + [32] * 3 + [40] * 6
    assert list(ramp.sizes) == [16, 24, 32, 40]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0, 8, 100, 32), "at least 1"),
        ((32, 8, 100, 32), "start below the full batch"),
        ((8, 8, 0, 32), "at least 1"),
        ((8, 7, 100, 32), "divisor of 24, or a start of 11"),
        ((8, 8, 1e5, 32), "a ramp's samples must be a whole number, got 100000.0"),
    ],
)
def test_numbers_that_make_no_ramp_are_refused(
    numbers: tuple[Any, Any, Any, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        BatchRamp(*numbers)


def test_negative_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        BatchRamp(1, 1, 10, 2).after(0, -1)
