"""A canary of one process: recorded, checked, resumed, and what it fails with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hpckit.config.canary_record import read_golden
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.permanent_errors import is_permanent
from hpckit.trainer.precision.canary import Canary, CanaryError, build_canary
from tests.unit.hpckit.specs_and_processes import make_spec

LOSSES = [5.0, 4.0, 3.0]


def canary(path: Path, mode: str) -> Canary:
    values = {"debug.canary.mode": mode, "debug.canary.file": str(path), "debug.canary.steps": 3}
    found = build_canary(make_spec(values), 2, torch.device("cpu"))
    assert found is not None
    return found


def play(bird: Canary, losses: list[float], first: int = 1) -> dict[str, Any]:
    for step, loss in enumerate(losses, start=first):
        bird.check_step(step, {"loss": loss, "lr": step})
    return bird.end(is_first=True)


def test_what_was_recorded_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    assert play(canary(path, "record"), LOSSES) == {"steps": 3, "recorded": str(path)}
    found = read_golden(path)
    assert found.steps == [{"loss": loss} for loss in LOSSES]
    assert (found.torch, found.world_size, found.device) == (torch.__version__, 2, "cpu")
    told = play(canary(path, "check"), [5.0, 4.0, 3.001])
    assert told["largest_difference"] == pytest.approx(0.001 / 3.001)


def test_the_first_step_that_differs_ends_it_for_good(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    play(canary(path, "record"), LOSSES)
    bird = canary(path, "check")
    bird.check_step(1, {"loss": 5.0})
    with pytest.raises(
        CanaryError,
        match=r"step 2: loss is 4\.1, but 4 was recorded \(relative "
        r"difference 0\.024\)",
    ) as e:
        bird.check_step(2, {"loss": 4.1})
    assert f"torch {torch.__version__} on 2 ranks of cpu" in str(e.value)
    assert is_permanent(e.value)


def test_one_that_was_interrupted_records_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    first, second = canary(path, "record"), canary(path, "record")
    first.check_step(1, {"loss": LOSSES[0]})
    second.load_state_dict(first.state_dict())
    play(second, LOSSES[1:], first=2)
    assert [step["loss"] for step in read_golden(path).steps] == LOSSES


def test_another_rank_than_the_first_writes_nothing(tmp_path: Path) -> None:
    bird = canary(tmp_path / "golden.json", "record")
    bird.check_step(1, {"loss": 1.0})
    bird.end(is_first=False)
    assert not (tmp_path / "golden.json").exists()


def test_where_there_is_nothing_to_compare_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"give loss or grad_norm to run\.log"):
        canary(tmp_path / "golden.json", "record").check_step(1, {"accuracy": 1.0})
    with pytest.raises(TrainingError, match="does not exist"):
        canary(tmp_path / "golden.json", "check")


def test_without_a_mode_there_is_none() -> None:
    assert build_canary(make_spec(), 1, torch.device("cpu")) is None
