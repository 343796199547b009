"""Memory snapshots, which are files with the allocations of a GPU when its memory ran out, for
https://pytorch.org/memory_viz."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from hpckit.torch_internals import dump_memory_snapshot, record_memory_history

log = logging.getLogger(__name__)

HISTORY = 100_000
"""Number of allocations that a rank remembers, of some hundred bytes each."""


def record_allocations(device: torch.device) -> None:
    """Start to record the call stacks of the newest `HISTORY` allocations, if `device` is a GPU."""
    if device.type == "cuda":
        record_memory_history(max_entries=HISTORY)


def write_memory_snapshot(path: Path) -> None:
    """Write the memory snapshot to `path` if this process uses a GPU. If it cannot be written, an
    error is logged."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    try:
        dump_memory_snapshot(str(path))
    except (OSError, RuntimeError) as error:
        log.error("no snapshot of the GPU's memory: %s", error)
    else:
        log.info("memory snapshot of the GPU: %s, for https://pytorch.org/memory_viz", path)
