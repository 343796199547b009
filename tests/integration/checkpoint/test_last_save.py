"""The last save of a training is not skipped, however slow the store is."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from unittest import mock

import pytest
import torch

from checkpointing import Checkpointer, SaveError, list_checkpoints
from checkpointing.save.save_pipeline import SavePipeline
from checkpointing.service.config import Budget
from tests.integration.checkpoint.single_process_saves import recorder

SLOW = Budget(cpu=1, nice=0, bytes_per_s=8 << 20)


def behind(store: Path) -> tuple[Checkpointer, dict[str, torch.Tensor], int]:
    """One whose newest save, of that step, was skipped."""
    events, emit = recorder()
    ckpt = Checkpointer(store, run="r", budget=SLOW, on_event=emit)
    state = {"w": torch.empty(1 << 20)}
    for step in count(1):
        state["w"].normal_()
        ckpt.save(step, state)
        if ("save_skipped", step) in [(kind, fields.get("step")) for kind, fields in events]:
            return ckpt, state, step
    raise AssertionError


def test_it_waits_for_those_before_it_and_saves_the_step_that_was_skipped(tmp_path: Path) -> None:
    ckpt, state, step = behind(tmp_path)
    ckpt.save(step, state, is_last=True)
    ckpt.save(step, state, is_last=True)  # it is durable: nothing happens
    ckpt.close()
    assert [found.step for found in list_checkpoints(tmp_path)].count(step) == 1


def test_without_it_a_skipped_save_is_an_error_at_the_end(tmp_path: Path) -> None:
    ckpt, _, step = behind(tmp_path)
    with pytest.raises(SaveError, match=f"saving step {step}: rank 0: the store is slow.*is_last"):
        ckpt.close()
    assert step not in [found.step for found in list_checkpoints(tmp_path)]


def test_nothing_is_waited_for_if_a_slot_is_free(tmp_path: Path) -> None:
    """The program may have to end before the store has the save before it."""
    ckpt, state = Checkpointer(tmp_path, run="r"), {"w": torch.ones(3)}
    with mock.patch.object(SavePipeline, "wait", side_effect=AssertionError):
        ckpt.save(1, state)
        ckpt.save(2, state, is_last=True)
    ckpt.close()
    assert 2 in [found.step for found in list_checkpoints(tmp_path)]


def test_what_cannot_be_saved_is_an_error_also_of_the_last_save(tmp_path: Path) -> None:
    ckpt, state = Checkpointer(tmp_path, run="r"), {"w": torch.ones(3)}
    with pytest.raises(TypeError, match="metrics: loss must be a number"):
        ckpt.save(1, state, {"loss": "low"}, is_last=True)  # type: ignore[dict-item]
    ckpt.save(1, state, is_last=True)
    ckpt.close()
    assert [found.step for found in list_checkpoints(tmp_path)] == [1]
