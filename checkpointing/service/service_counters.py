"""Counters of what a service did, for `hpckit ckpt status` and for metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DurableCheckpoint:
    """The last checkpoint that this node knows to be committed."""

    step: int
    id: str
    created: float  # Unix time of the call of `save`
    committed: float  # Unix time of the commit
    bytes: int  # raw bytes of this node
    seconds: float  # seconds from its arrival to the commit


@dataclass
class ServiceCounters:
    """Counts since the service was started."""

    started: float = field(default_factory=time.time)  # Unix time
    staged: int = 0
    committed: int = 0
    failed: int = 0
    dropped: int = 0  # snapshots given up for newer ones while they waited
    skipped: int = 0  # steps not staged because no slot was free
    raw_bytes: int = 0  # raw bytes that were made durable
    new_bytes: int = 0  # bytes that they added to the store
    spooled: int = 0  # snapshots of ranks that were copied to the node's own disk
    spool_failed: int = 0  # snapshots that could not be copied
    spool_error: str | None = None  # why the last copy failed
    recovered: int = 0  # snapshots that were found there when the service was started
    local_bytes_per_s: float | None = None  # write rate to that disk, as last measured
    # the last choice for a deadline, see `save_tier_choice`, and its outcome
    choice: dict[str, Any] | None = None
    last: DurableCheckpoint | None = None
    error: str | None = None  # the error of the last save, if it failed
