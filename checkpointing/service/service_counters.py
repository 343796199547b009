"""What a service did, in numbers: for `hpckit ckpt status` and for metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DurableCheckpoint:
    """The last checkpoint that this node knows to be committed."""

    step: int
    id: str
    created: float  # Unix time of its save()
    committed: float  # Unix time
    bytes: int  # raw, of this node
    seconds: float  # from its arrival to the commit


@dataclass
class ServiceCounters:
    """Counts since the service was started."""

    started: float = field(default_factory=time.time)  # Unix time
    staged: int = 0
    committed: int = 0
    failed: int = 0
    dropped: int = 0  # given up while waiting, for newer ones
    skipped: int = 0  # not staged, for want of a slot
    raw_bytes: int = 0  # of what was made durable
    new_bytes: int = 0  # that it added to the store
    spooled: int = 0  # snapshots of ranks that got a copy on the node's own disk
    spool_failed: int = 0  # that could not
    spool_error: str | None = None  # why the last one could not
    recovered: int = 0  # that were found there when the service was started
    local_bytes_per_s: float | None = None  # to that disk, as last measured
    choice: dict[str, Any] | None = None  # the last for a deadline, see `tiers`, and its outcome
    last: DurableCheckpoint | None = None
    error: str | None = None  # of the last save, if it failed
