"""The kinds of memory that a run can run out of."""

from __future__ import annotations

from enum import StrEnum


class MemoryKind(StrEnum):
    """A kind of memory."""

    GPU = "gpu"
    HOST = "host"
    """Memory of a node, or the job's part of it."""
