"""The kinds of memory that a run can run out of."""

from __future__ import annotations

from enum import StrEnum


class MemoryKind(StrEnum):
    """A kind of memory that can run out."""

    GPU = "gpu"
    HOST = "host"
    """The memory of a node, or the part of it that the job may use."""
