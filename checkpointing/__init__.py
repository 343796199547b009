"""Checkpoints of PyTorch training: saved without stopping it, verified, restored on any world size.

    ckpt = Checkpointer("s3://bucket/ckpts", run="gpt-7b", every=Minutes(10), keep=[Last(3)])
    step = ckpt.restore(state)                   # None if there is none
    if ckpt.due(step): ckpt.save(step, state)    # returns as soon as the state may change
    load({"model": model}, url, run="base")      # parts of any run's checkpoint: to fine-tune

The store below it (`Store`, `Checkpoint`) works without torch; FORMAT.md specifies it. Importing
the package does not import torch; Checkpointer and load do, when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkpointing.errors import (
    CheckpointError,
    DamagedError,
    FormatError,
    SaveError,
    ServiceError,
    StageError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StructureError,
)
from checkpointing.policy import Auto, Minutes, Steps
from checkpointing.retention import Best, Buckets, Every, Last, Only, decide, parse_keep
from checkpointing.runs import list_checkpoints, list_run, local_folder, rename_run, verify
from checkpointing.store.catalog import CheckpointInfo
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.store import Store

if TYPE_CHECKING:
    from checkpointing.checkpointer import Checkpointer
    from checkpointing.loading import load

__all__ = [
    "Auto",
    "Best",
    "Buckets",
    "Checkpoint",
    "CheckpointError",
    "CheckpointInfo",
    "Checkpointer",
    "DamagedError",
    "Every",
    "FormatError",
    "Last",
    "Minutes",
    "Only",
    "SaveError",
    "ServiceError",
    "StageError",
    "Steps",
    "Store",
    "StoreAccessError",
    "StoreError",
    "StoreFullError",
    "StructureError",
    "decide",
    "list_checkpoints",
    "list_run",
    "load",
    "local_folder",
    "parse_keep",
    "rename_run",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "Checkpointer":
        from checkpointing.checkpointer import Checkpointer

        return Checkpointer
    if name == "load":
        from checkpointing.loading import load

        return load
    raise AttributeError(f"module 'checkpointing' has no attribute {name!r}")
