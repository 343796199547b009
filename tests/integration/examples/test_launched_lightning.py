"""Lightning under `hpckit launch`, with the Checkpointer: killed, preempted, the
same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.examples.launched_programs import disturbed, undisturbed

pytest.importorskip("lightning", reason="the dev extra has Lightning")


def test_killed_and_preempted_it_trains_as_if_nothing_had_been(tmp_path: Path) -> None:
    whole = undisturbed(tmp_path / "whole", "lightning_program")
    found = disturbed(tmp_path / "disturbed", "lightning_program", 0.15, kill_at=14)
    assert list(whole.losses[0]) == list(range(1, 61))
    assert found.losses == whole.losses
