"""The last save of a training is not skipped, however slow the store is."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import torch

from checkpointing import Checkpointer, SaveError, list_checkpoints
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
    with pytest.raises(SaveError, match=f"saving step {step}: rank 0: the store is slower than"):
        ckpt.close()
    assert step not in [found.step for found in list_checkpoints(tmp_path)]
