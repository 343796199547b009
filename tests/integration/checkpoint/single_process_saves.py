"""Saving and restoring in one process, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpointing import Checkpointer

Events = list[tuple[str, dict[str, Any]]]


def recorder() -> tuple[Events, Callable[..., None]]:
    events: Events = []
    return events, lambda kind, **fields: events.append((kind, fields))


def die(ckpt: Checkpointer) -> None:
    """Leave as a process does that is killed: nothing is said to anybody."""
    ckpt._dropped.detach()
    ckpt._closed = True
    ckpt._shipper.settle()
    ckpt._client.close(goodbye=False)
    ckpt._shipper.close()
    ckpt._store.close()
    ckpt._ranks.close()


def save_one(store: Path, step: int, state: dict[str, Any], **options: Any) -> None:
    ckpt = Checkpointer(store, run="r", **options)
    ckpt.save(step, state)
    ckpt.close()


def restore_one(store: Path, state: dict[str, Any], **options: Any) -> int | None:
    ckpt = Checkpointer(store, run="r", **options)
    try:
        return ckpt.restore(state)
    finally:
        ckpt.close()
