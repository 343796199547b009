"""A run with dropout on another number of ranks: the same samples, and losses within the band that
docs/promises.md states."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.run.dropout_worlds import BAND, REFERENCE, deviation, train_arm

STEPS = 40


def test_a_resized_run_has_the_same_samples_and_its_losses_are_within_the_band(
    shards: Path, tmp_path: Path
) -> None:
    whole = train_arm(tmp_path / "whole", shards, REFERENCE, 1, STEPS)
    resized = train_arm(tmp_path / "resized", shards, "resized", 1, STEPS)
    assert (whole.worlds, resized.worlds) == ([1], [2, 1])
    assert len(whole.samples) == STEPS
    assert resized.samples == whole.samples
    assert resized.losses != whole.losses, "other masks"
    found = deviation(resized.losses, whole.losses)
    assert found.step <= BAND.step
    assert found.ten <= BAND.ten
    assert found.end <= BAND.end


def test_a_deviation_is_a_share_of_the_reference() -> None:
    reference = [2.0] * 30
    assert deviation(reference, reference) == deviation([4.0] * 30, [4.0] * 30)
    found = deviation([*reference[:-1], 3.0], reference)
    assert found.step == pytest.approx(0.5)
    assert found.ten == pytest.approx(0.05)
    assert found.end == pytest.approx(0.025)
    with pytest.raises(ValueError, match="30 and 29 steps"):
        deviation(reference, reference[1:])
