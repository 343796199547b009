"""Snapshots of ranks, as they are at hangs."""

from __future__ import annotations

from collections.abc import Iterable

from hpckit.hangs.hang_snapshot import (
    CollectiveCall,
    HangSnapshot,
    ProcessGroupState,
    ProcessState,
    RecordedCall,
    StackFrame,
    compressed,
)

C10D = "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
QUEUE = StackFrame("/usr/lib/python3.12/queue.py", 171, "Queue.get")
LOADING = (
    QUEUE,
    StackFrame("/home/u/data.py", 88, "next"),
    StackFrame("/home/u/train.py", 30, "main"),
)
STEP = StackFrame("/home/u/train.py", 31, "main")


def group(
    ranks: Iterable[int],
    sequence: int | None,
    name: str = "0",
    records: tuple[RecordedCall, ...] = (),
) -> ProcessGroupState:
    described = {"0": "default_pg"}.get(name, name)
    return ProcessGroupState(name, described, tuple(compressed(ranks)), sequence, records)


def waiting(
    rank: int,
    *groups: ProcessGroupState,
    operation: str = "all_reduce",
    size: str | None = "float32[4]",
    step: int = 9,
    peer: int | None = None,
    line: int = 31,
) -> HangSnapshot:
    """A rank in a collective of the first of its groups."""
    inner = StackFrame(C10D, 3252, operation)
    call = CollectiveCall(operation, groups[0].name if groups else "0", size, peer)
    return HangSnapshot(
        rank,
        f"n{rank // 8}",
        ProcessState.ALIVE,
        step,
        (inner, StackFrame("/home/u/train.py", line, "main")),
        call,
        groups=groups or None,
        is_overdue=True,
    )


def elsewhere(
    rank: int,
    *groups: ProcessGroupState,
    frames: tuple[StackFrame, ...] = LOADING,
    state: ProcessState = ProcessState.ALIVE,
    is_moving: bool = False,
    notes: tuple[str, ...] = (),
) -> HangSnapshot:
    """A rank in no collective."""
    return HangSnapshot(
        rank,
        f"n{rank // 8}",
        state,
        9,
        frames,
        groups=groups or None,
        is_moving=is_moving,
        is_overdue=True,
        notes=notes,
    )
