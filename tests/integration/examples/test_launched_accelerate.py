"""A loop with accelerate under `hpckit launch`: preempted, the same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.examples.launched_programs import PROGRAMS, disturbed, undisturbed
from tests.startup.fork_request import WITH

pytest.importorskip("accelerate", reason="the dev extra has accelerate")


def test_preempted_it_trains_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WITH, "accelerate")
    program = PROGRAMS / "accelerate_program.py"
    whole = undisturbed(tmp_path / "whole", program, imports=["accelerate"])
    found = disturbed(tmp_path / "disturbed", program, kill_at=None)
    assert list(whole[0]) == list(range(1, 61))
    assert found.steps == whole
    assert found.times_at_end == 2
