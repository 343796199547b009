import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing import Auto, Minutes, Steps
from checkpointing.save_policy import AnyOf, SaveSituation


@given(n=st.integers(1, 50), start=st.integers(0, 500), stride=st.integers(1, 7))
def test_steps_saves_once_per_multiple_whatever_steps_are_asked_about(
    n: int, start: int, stride: int
) -> None:
    last, saved = start, []
    for step in range(start + 1, start + 400, stride):
        if Steps(n).due(SaveSituation(step, last, 0.0, None)):
            last = step
            saved.append(step)
    passed = {step // n for step in range(start + 1, start + 400, stride)} - {start // n}
    assert [step // n for step in saved] == sorted(passed)


def test_steps_from_the_beginning() -> None:
    assert [s for s in range(101) if Steps(50).due(SaveSituation(s, None, 0.0, None))] == list(
        range(50, 101)
    )
    assert not Steps(50).due(SaveSituation(50, 50, 0.0, None))
    assert not Steps(50).due(SaveSituation(99, 75, 0.0, None))
    assert Steps(50).due(SaveSituation(100, 75, 0.0, None))


def test_minutes_counts_from_the_last_save() -> None:
    assert Minutes(10).due(SaveSituation(1, None, 0.0, None))
    assert not Minutes(10).due(SaveSituation(1, 0, 700.0, 101.0))
    assert Minutes(10).due(SaveSituation(1, 0, 701.0, 101.0))


def test_either() -> None:
    both = Minutes(10) | Steps(50) | Steps(70)
    assert both == AnyOf((Minutes(10), Steps(50), Steps(70)))
    assert both.uses_clock
    assert not (Steps(1) | Steps(2)).uses_clock
    assert both.due(SaveSituation(50, 49, 0.0, 0.0))
    assert both.due(SaveSituation(51, 50, 600.0, 0.0))
    assert not both.due(SaveSituation(51, 50, 599.0, 0.0))


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "5"])
def test_steps_refuses(n: int) -> None:
    with pytest.raises(ValueError, match="Steps"):
        Steps(n)


@pytest.mark.parametrize("m", [0, -1, float("nan"), float("inf"), True, "5"])
def test_minutes_refuses(m: float) -> None:
    with pytest.raises(ValueError, match="Minutes"):
        Minutes(m)


def test_auto_is_young_and_daly_between_its_bounds() -> None:
    policy = Auto(mtbf_s=10_000.0, at_least_s=5.0, at_most_s=500.0)

    def interval_s(**costs: float) -> float:
        return policy.interval_s(SaveSituation(1, 0, 0.0, 0.0, **costs))  # type: ignore[arg-type]

    assert interval_s(stall_s=0.5) == pytest.approx(100.0)  # sqrt(2 * 0.5 * 10000)
    assert interval_s(stall_s=0.0) == 5.0
    assert interval_s(stall_s=0.5, durable_s=130.0) == 130.0
    assert interval_s(stall_s=100.0) == 500.0
    # three failures in 30000 s more: as four in 40000 s
    assert interval_s(stall_s=0.5, failures=3, trained_s=30_000.0) == pytest.approx(100.0)
    assert interval_s(stall_s=0.5, failures=15, trained_s=30_000.0) == pytest.approx(50.0)


def test_auto_is_due_after_its_interval() -> None:
    policy = Auto(mtbf_s=10_000.0, at_least_s=5.0)
    assert policy.due(SaveSituation(1, None, 0.0, None))
    assert not policy.due(SaveSituation(1, 0, 199.9, 100.0, stall_s=0.5))
    assert policy.due(SaveSituation(1, 0, 200.1, 100.0, stall_s=0.5))
    assert (policy | Steps(5)).uses_clock


@pytest.mark.parametrize("bad", [0, -1, float("nan"), True, "5"])
def test_auto_refuses(bad: float) -> None:
    with pytest.raises(ValueError, match="mtbf_s"):
        Auto(mtbf_s=bad)
    with pytest.raises(ValueError, match="at_least_s"):
        Auto(mtbf_s=1.0, at_least_s=9.0, at_most_s=3.0)
