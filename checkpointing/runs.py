"""The runs of a store, as wholes. Without torch."""

from __future__ import annotations

import os
from pathlib import Path

from checkpointing.catalog import CheckpointInfo, list_checkpoints
from checkpointing.durable import fsync_dir
from checkpointing.layout import local_root, steps_dir


def run_folder(root: str | os.PathLike[str], run: str) -> Path:
    """Where the store at `root` keeps all of `run`."""
    return steps_dir(local_root(root), run).parent


def list_run(root: str | os.PathLike[str], run: str) -> list[CheckpointInfo]:
    """The checkpoints of `run` in the store at `root`, oldest first; none if it has none."""
    steps = steps_dir(local_root(root), run)
    return list_checkpoints(steps) if steps.is_dir() else []


def rename_run(root: str | os.PathLike[str], run: str, name: str) -> None:
    """Give the checkpoints of `run` another run's name, so that `run` begins anew.

    Nobody may be saving or restoring `run` meanwhile. A run without checkpoints is left alone.

    Raises:
        OSError: the store has a run of that name.
    """
    before = run_folder(root, run)
    if before.is_dir():
        before.rename(run_folder(root, name))
        fsync_dir(before.parent)
