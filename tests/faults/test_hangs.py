"""Ranks that hang in many ways: who is named, and where he is."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.agent.hangs import snapshot_collection
from tests.effort import some
from tests.faults.hang_drill import drill
from tests.faults.hanging_ranks import KINDS, WORLD, can_cut
from tests.forkserver import fork_server

USUAL = ("skipped", "exchange", "kernel_io", "slow")
"""One by torch's collectives, one by those of hpckit, one by what the kernel says, and one that is
no hang."""
ALL_ANSWER = ("skipped", "exchange", "slow")
"""Kinds in which each rank answers, so that a busy machine may take as long as it does."""
OTHERS = tuple(kind for kind in KINDS if kind not in USUAL)


@pytest.mark.parametrize("kind", some(USUAL, OTHERS))
def test_the_rank_that_hangs_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "cut" and not can_cut():
        pytest.skip("this user cannot make a network")
    if kind in ALL_ANSWER:
        monkeypatch.setattr(snapshot_collection, "ANSWER_S", 60.0)
    culprit = list(KINDS).index(kind) % WORLD
    found = drill(kind, culprit, tmp_path, fork_server())
    assert found.problem is None
