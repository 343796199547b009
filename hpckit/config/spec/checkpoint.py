"""When and where state is saved, and how long it is kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Count, Positive, Text


@dataclass(frozen=True, config=GROUP)
class KeepSpec:
    """Which checkpoints outlive newer ones; a checkpoint stays while any rule keeps it."""

    last: Count
    """The newest so many."""
    every: Count | None
    """Each multiple of so many steps."""
    best: str | None
    """The one with the lowest value of this metric, which gets the mark "best". Of validation, such
    as val_loss: each step that was validated is saved, too."""


@dataclass(frozen=True, config=GROUP)
class CheckpointSpec:
    """When and where state is saved (`conf/checkpoint/`)."""

    url: Text | None
    """Store of the checkpoints: a path, s3://bucket/folder, or any URL that fsspec knows; null: the
    folder `checkpoints` in the run directory."""
    every_steps: Count | None
    """Save each so many steps (one of this and the next two; all null: only at the end)."""
    every_minutes: Positive | None
    """Save each so many minutes."""
    mtbf_hours: Positive | None
    """Save as often as is best for a job that fails each so many hours (Young and Daly)."""
    max_unsaved_minutes: Positive | None
    """Give up training when nothing has become durable for so long; null: never."""
    compress: bool
    """Store what pays compressed, or as the difference to an earlier save (exactly, either way)."""
    depth: Annotated[int, Field(ge=1, le=100)]
    """Earlier saves that a restore has to read for such a difference, at most."""
    replicas: Annotated[int, Field(ge=0, le=1)]
    """1: the next node's memory holds each node's snapshots too, so that a lost one loses none."""
    local: Text | None
    """Folder on each node's own disk (yours alone, mode 0700) for what a preemption leaves no time
    to bring to the store; null: none."""
    staging: Literal["slots", "buckets"]
    """slots: the state is copied to the host's memory at once; buckets: for nodes that have not the
    memory, a part at a time, and training waits until the last one is."""
    check_replicas: Annotated[int, Field(ge=0)]
    """Compare what several ranks hold alike at each so many saves; 0: never. A checkpoint of which
    replicas differ is marked, and a run goes on from one that is not."""
    may_differ: tuple[Text, ...]
    """Patterns of names, as model/*.usage, of what each rank may have of its own all the same."""
    keep: KeepSpec
    """Retention."""
