"""A node takes part in an announced save once, and not in one that was committed or given up."""

from __future__ import annotations

import pytest

from checkpointing.format.object_keys import SaveId
from checkpointing.service.registry.generation_state import GenerationState
from checkpointing.service.snapshots import Generation

GIVEN_UP = SaveId("r", 9, "00000001")


@pytest.mark.parametrize(
    ("announced", "is_new"),
    [
        (SaveId("r", 4, "00000002"), False),
        (SaveId("r", 5, "00000002"), False),
        (SaveId("r", 6, "00000002"), True),
        (GIVEN_UP, False),
        (SaveId("r", 9, "00000002"), True),
    ],
    ids=["older", "the committed step", "newer", "given up", "its step in another session"],
)
def test_an_announced_save_is_new_beyond_the_committed_step(
    announced: SaveId, is_new: bool
) -> None:
    state = GenerationState(Generation("00000002", 1), frozenset([0]), settled=5)
    state.given_up = GIVEN_UP
    assert state.is_new(announced) == is_new


def test_the_first_step_of_all_is_new() -> None:
    assert GenerationState(Generation("00000002", 1), frozenset([0])).is_new(
        SaveId("r", 0, "00000002")
    )
