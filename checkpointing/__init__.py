"""Checkpoints of PyTorch training: saved without stopping it, verified, restored on any world size.

    ckpt = Checkpointer("/scratch/ckpts", run="gpt-7b", every=Minutes(10), keep=[Last(3)])
    step = ckpt.restore(state)                   # None if there is none
    if ckpt.due(step): ckpt.save(step, state)    # returns as soon as the state is staged

Importing the package does not import torch; Checkpointer does, when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkpointing.catalog import CheckpointInfo, list_checkpoints, verify
from checkpointing.errors import (
    CheckpointError,
    DamagedError,
    FormatError,
    SaveError,
    StoreError,
    StructureError,
)
from checkpointing.policy import Minutes, Steps
from checkpointing.retention import Best, Every, Last, keep_reasons
from checkpointing.runs import list_run, rename_run, run_folder

if TYPE_CHECKING:
    from checkpointing.checkpointer import Checkpointer

__all__ = [
    "Best",
    "CheckpointError",
    "CheckpointInfo",
    "Checkpointer",
    "DamagedError",
    "Every",
    "FormatError",
    "Last",
    "Minutes",
    "SaveError",
    "Steps",
    "StoreError",
    "StructureError",
    "keep_reasons",
    "list_checkpoints",
    "list_run",
    "rename_run",
    "run_folder",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "Checkpointer":
        from checkpointing.checkpointer import Checkpointer

        return Checkpointer
    raise AttributeError(f"module 'checkpointing' has no attribute {name!r}")
