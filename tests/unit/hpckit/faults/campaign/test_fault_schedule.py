"""Schedules of faults: pure, and the same for the same seed."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.faults.campaign.fault_schedule import (
    USUAL,
    load_schedule,
    make_schedule,
    parse_rates,
    save_schedule,
)
from hpckit.faults.fault_plan import DrillKind


@given(st.integers(), st.integers(1, 3000), st.floats(1.0, 200.0))
def test_faults_come_at_distances_around_the_one_asked_for(
    seed: int, steps: int, every: float
) -> None:
    found = make_schedule(seed, steps, every, USUAL)
    assert found == make_schedule(seed, steps, every, USUAL)
    at = [0, *(planned.step for planned in found)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert all(max(1, every / 2 - 0.5) <= gap <= 1.5 * every + 0.5 for gap in gaps)
    assert all(planned.step <= steps - every for planned in found)
    assert len(found) >= (steps - every) // (1.5 * every + 1) - 1
    assert all(0 <= planned.number(7) < 7 for planned in found)


def test_kinds_come_by_their_rates() -> None:
    rates: dict[str, float] = {DrillKind.WORKER: 3.0, DrillKind.NODE: 1.0}
    kinds = [planned.kind for planned in make_schedule(0, 100_000, 10, rates)]
    assert set(kinds) == rates.keys()
    assert kinds.count(DrillKind.WORKER) == pytest.approx(0.75 * len(kinds), rel=0.05)


def test_every_kind_there_is_comes_usually() -> None:
    assert USUAL.keys() == set(DrillKind)


def test_rates_are_read() -> None:
    assert parse_rates("worker=3, hang", USUAL) == {DrillKind.WORKER: 3.0, DrillKind.HANG: 1.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fire", "'fire' is not a fault; the faults are worker, hang, agent"),
        ("", "'' is not a fault"),
        ("worker=-1", "worker=-1: a rate must be a number above 0"),
        ("worker=nan", "above 0"),
        ("worker=lots", "above 0"),
    ],
)
def test_other_rates_are_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_rates(text, USUAL)


def test_a_schedule_is_kept_as_it_is(tmp_path: Path) -> None:
    schedule = make_schedule(3, 1000, 50, USUAL)
    save_schedule(tmp_path / "faults.jsonl", schedule)
    assert load_schedule(tmp_path / "faults.jsonl", USUAL) == schedule


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        '{"step": 3}',
        '{"step": 3, "kind": "fire", "target": 0}',
        '{"step": 3, "kind": "worker", "target": 1}',
        "[]",
    ],
)
def test_what_is_no_schedule_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "faults.jsonl"
    path.write_text(f'{{"step": 3, "kind": "worker", "target": 0}}\n{line}\n')
    with pytest.raises(ValueError, match="line 2 is not a planned fault"):
        load_schedule(path, USUAL)
