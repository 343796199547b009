"""Which memory a run can run out of."""

from __future__ import annotations

from enum import StrEnum


class MemoryKind(StrEnum):
    """Of what."""

    GPU = "gpu"
    HOST = "host"
    """A node's, or what its job may have of it."""
