import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing import Minutes, Steps
from checkpointing.policy import AnyOf


@given(n=st.integers(1, 50), start=st.integers(0, 500), stride=st.integers(1, 7))
def test_steps_saves_once_per_multiple_whatever_steps_are_asked_about(
    n: int, start: int, stride: int
) -> None:
    last, saved = start, []
    for step in range(start + 1, start + 400, stride):
        if Steps(n).due(step, last, 0.0, None):
            last = step
            saved.append(step)
    passed = {step // n for step in range(start + 1, start + 400, stride)} - {start // n}
    assert [step // n for step in saved] == sorted(passed)


def test_steps_from_the_beginning() -> None:
    assert [s for s in range(101) if Steps(50).due(s, None, 0.0, None)] == list(range(50, 101))
    assert not Steps(50).due(50, 50, 0.0, None)
    assert not Steps(50).due(99, 75, 0.0, None)
    assert Steps(50).due(100, 75, 0.0, None)


def test_minutes_counts_from_the_last_save() -> None:
    assert Minutes(10).due(1, None, 0.0, None)
    assert not Minutes(10).due(1, 0, 700.0, 101.0)
    assert Minutes(10).due(1, 0, 701.0, 101.0)


def test_either() -> None:
    both = Minutes(10) | Steps(50) | Steps(70)
    assert both == AnyOf((Minutes(10), Steps(50), Steps(70)))
    assert both.uses_clock
    assert not (Steps(1) | Steps(2)).uses_clock
    assert both.due(50, 49, 0.0, 0.0)
    assert both.due(51, 50, 600.0, 0.0)
    assert not both.due(51, 50, 599.0, 0.0)


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "5"])
def test_steps_refuses(n: int) -> None:
    with pytest.raises(ValueError, match="Steps"):
        Steps(n)


@pytest.mark.parametrize("m", [0, -1, float("nan"), float("inf"), True, "5"])
def test_minutes_refuses(m: float) -> None:
    with pytest.raises(ValueError, match="Minutes"):
        Minutes(m)
