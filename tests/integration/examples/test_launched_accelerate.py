"""A loop with accelerate under `hpckit launch`: preempted, the same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.examples.launched_programs import disturbed, undisturbed

pytest.importorskip("accelerate", reason="the dev extra has accelerate")


def test_preempted_it_trains_as_if_nothing_had_been(tmp_path: Path) -> None:
    whole = undisturbed(tmp_path / "whole", "accelerate_program")
    found = disturbed(tmp_path / "disturbed", "accelerate_program", 0.15, kill_at=None)
    assert list(whole.losses[0]) == list(range(1, 61))
    assert found.losses == whole.losses
