"""Checkpoints of PyTorch training: saved without stopping it, verified, restored on any world size.

    ckpt = Checkpointer("s3://bucket/ckpts", run="gpt-7b", every=Minutes(10), keep=[Last(3)])
    step = ckpt.restore(state)                   # None if there is none
    if ckpt.due(step): ckpt.save(step, state)    # returns as soon as the state may change
    load({"model": model}, url, run="base")      # parts of any run's checkpoint: to fine-tune

The store below it (`Store`, `Checkpoint`) works without torch; FORMAT.md specifies it. Importing
the package imports almost nothing: a name's module is imported when the name is first used, and
only Checkpointer, its options and load import torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from checkpointing.errors import (
    CheckpointError,
    DamagedError,
    FormatError,
    OtherRankError,
    SaveError,
    ServiceError,
    StageError,
    StoreAccessError,
    StoreError,
    StoreFullError,
    StructureError,
)
from checkpointing.store_url import local_folder, meant_url

if TYPE_CHECKING:
    from checkpointing.checkpointer import Checkpointer
    from checkpointing.follower.follower import FollowedStep, Follower
    from checkpointing.follower.follower_options import FollowerOptions
    from checkpointing.follower.shared_weights import SharedWeights
    from checkpointing.format.values.registered_classes import register
    from checkpointing.options import CheckpointerOptions
    from checkpointing.restore.partial_load import load
    from checkpointing.retention import (
        Best,
        Buckets,
        Every,
        Last,
        Only,
        Unevaluated,
        decide,
        parse_keep,
    )
    from checkpointing.retention_pruner import mark_best
    from checkpointing.runs import fork_run, list_checkpoints, list_run, rename_run, verify
    from checkpointing.save_policy import Auto, Minutes, Steps
    from checkpointing.state.per_rank import PerRank
    from checkpointing.store.catalog import CheckpointInfo
    from checkpointing.store.checkpoint import Checkpoint
    from checkpointing.store.store import Store

__all__ = [
    "Auto",
    "Best",
    "Buckets",
    "Checkpoint",
    "CheckpointError",
    "CheckpointInfo",
    "Checkpointer",
    "CheckpointerOptions",
    "DamagedError",
    "Every",
    "FollowedStep",
    "Follower",
    "FollowerOptions",
    "FormatError",
    "Last",
    "Minutes",
    "Only",
    "OtherRankError",
    "PerRank",
    "SaveError",
    "ServiceError",
    "SharedWeights",
    "StageError",
    "Steps",
    "Store",
    "StoreAccessError",
    "StoreError",
    "StoreFullError",
    "StructureError",
    "Unevaluated",
    "decide",
    "fork_run",
    "list_checkpoints",
    "list_run",
    "load",
    "local_folder",
    "mark_best",
    "meant_url",
    "parse_keep",
    "register",
    "rename_run",
    "verify",
]


_MODULES = {
    "checkpointer": ("Checkpointer",),
    "follower.follower": ("FollowedStep", "Follower"),
    "follower.follower_options": ("FollowerOptions",),
    "follower.shared_weights": ("SharedWeights",),
    "format.values.registered_classes": ("register",),
    "options": ("CheckpointerOptions",),
    "restore.partial_load": ("load",),
    "state.per_rank": ("PerRank",),
    "save_policy": ("Auto", "Minutes", "Steps"),
    "retention": (
        *("Best", "Buckets", "Every", "Last", "Only", "Unevaluated"),
        *("decide", "parse_keep"),
    ),
    "retention_pruner": ("mark_best",),
    "runs": ("fork_run", "list_checkpoints", "list_run", "rename_run", "verify"),
    "store.catalog": ("CheckpointInfo",),
    "store.checkpoint": ("Checkpoint",),
    "store.store": ("Store",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
_OF_TORCH = {"Checkpointer", "CheckpointerOptions", "PerRank", "load"}
"""Names whose modules import torch."""


def __getattr__(name: str) -> Any:
    """Imports a name on first use, so that a command line which only needs the errors does not wait
    for numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'checkpointing' has no attribute {name!r}")
    try:
        home = import_module(f"checkpointing.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"checkpointing.{name} needs torch, which is not installed in {sys.prefix}: install "
            "the build for your GPUs, 2.7 or newer. Store and list_checkpoints do without it",
            name="torch",
        ) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    """Lists the names for users, also those that were not used yet, for `help` and completion;
    those that need torch only if it is installed."""
    from importlib.util import find_spec

    return sorted({*__all__} - (set() if find_spec("torch") else _OF_TORCH))
