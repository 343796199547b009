"""What was recorded of a canary, what is said of a bad record, and what counts as different."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.config.canary_record import (
    CanaryRecord,
    canary_problems,
    difference,
    identity_of,
    read_golden,
)
from hpckit.config.run_identity import identity
from tests.unit.hpckit.specs_and_processes import make_spec

STEPS = [{"loss": 5.0, "grad_norm": 2.0}, {"loss": 4.0, "grad_norm": 1.0}]


def changes(path: Path, steps: int = 2, mode: str = "check") -> dict[str, Any]:
    return {
        "debug.canary.mode": mode,
        "debug.canary.file": str(path),
        "debug.canary.steps": steps,
    }


def golden(path: Path, **spec: Any) -> CanaryRecord:
    return CanaryRecord(identity_of(make_spec(spec)), "2.13.0", 4, "cpu", STEPS)


def test_it_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    golden(path).write(path)
    assert read_golden(path) == golden(path)
    assert canary_problems(make_spec(changes(path))) == []


def test_it_belongs_to_the_run_without_a_canary(tmp_path: Path) -> None:
    spec = make_spec(changes(tmp_path / "golden.json"))
    assert identity_of(spec) == identity(make_spec()) != identity(spec)


def test_a_missing_record_is_refused_with_how_to_make_it(tmp_path: Path) -> None:
    (line,) = canary_problems(make_spec(changes(tmp_path / "none.json")))
    assert line.startswith("debug.canary.file: ")
    assert "does not exist; debug.canary.mode=record" in line
    assert canary_problems(make_spec(changes(tmp_path / "none.json", mode="record"))) == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"identity": "x", "steps": 3}'])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "golden.json"
    path.write_text(text)
    (line,) = canary_problems(make_spec(changes(path)))
    assert f"{path} does not contain recorded values" in line


def test_a_record_of_another_run_or_a_shorter_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    golden(path, **{"optim.lr": 0.5}).write(path)
    (line,) = canary_problems(make_spec(changes(path)))
    assert "another experiment" in line
    golden(path).write(path)
    (line,) = canary_problems(make_spec(changes(path, steps=3)))
    assert line.startswith(f"debug.canary.steps: 3 steps are to be compared, and {path} holds 2; ")


def test_the_value_that_differs_is_named_with_how_much() -> None:
    seen = {"loss": 4.0, "grad_norm": 1.1}
    assert difference(STEPS, 2, seen, 0.2) is None
    assert difference(STEPS, 2, seen, 0.01) == (
        "step 2: grad_norm is 1.1, but 1 was recorded (relative difference 0.091)"
    )
    assert "has loss; the record has loss, grad_norm" in str(difference(STEPS, 2, {"loss": 4.0}, 1))


@pytest.mark.parametrize("value", [math.nan, math.inf, -5.0])
def test_no_tolerance_lets_these_pass(value: float) -> None:
    assert difference([{"loss": 5.0}], 1, {"loss": value}, 0.5) is not None
    assert difference([{"loss": math.nan}], 1, {"loss": math.nan}, 0.5) is not None


@given(value=st.floats(1e-6, 1e6), off=st.floats(-0.5, 0.5), tolerance=st.floats(1e-6, 0.4))
def test_what_is_off_by_more_than_the_tolerance_differs(
    value: float, off: float, tolerance: float
) -> None:
    other = value * (1 + off)
    share = abs(other - value) / max(value, other)
    if abs(share - tolerance) > 1e-9:
        found = difference([{"loss": value}], 1, {"loss": other}, tolerance)
        assert (found is not None) == (share > tolerance)
