"""Memory snapshots: the allocations of a GPU when its memory ran out, as a file for
https://pytorch.org/memory_viz."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

log = logging.getLogger(__name__)

HISTORY = 100_000  # allocations kept per rank: some hundred bytes each


def record_allocations(device: torch.device) -> None:
    """Start to record where the newest `HISTORY` allocations of a GPU came from."""
    if device.type == "cuda":
        torch.cuda.memory._record_memory_history(max_entries=HISTORY)


def write_memory_snapshot(path: Path) -> None:
    """Write the memory snapshot if this process uses a GPU; logs its path, or why it could not be
    written."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    try:
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError) as error:
        log.error("no snapshot of the GPU's memory: %s", error)
    else:
        log.info("what the GPU's memory held: %s, for https://pytorch.org/memory_viz", path)
