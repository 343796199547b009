"""When and where checkpoints are saved, and how long they are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Count, Positive, Text


@dataclass(frozen=True, config=GROUP)
class KeepSpec:
    """Retention: a checkpoint is kept as long as any of these rules keeps it."""

    last: Count
    """Number of newest checkpoints to keep."""
    every: Count | None
    """Keep checkpoints at multiples of this number of steps; null: none."""
    best: str | None
    """Keep the checkpoint with the lowest value of this metric, and mark it "best". For a
    validation metric such as val_loss, each validated step is saved, too. null: none."""


@dataclass(frozen=True, config=GROUP)
class CheckpointSpec:
    """When and where checkpoints are saved (`conf/checkpoint/`)."""

    url: Text | None
    """Store of the checkpoints: a path, s3://bucket/folder, or any URL that fsspec supports; null:
    the folder `checkpoints` in the run directory."""
    every_steps: Count | None
    """Save interval in steps. Give only one of this and the next two; if all are null, only the
    last step is saved."""
    every_minutes: Positive | None
    """Save interval in minutes."""
    mtbf_hours: Positive | None
    """Mean time between failures of the job, from which the optimal save interval is computed
    (Young and Daly)."""
    max_unsaved_minutes: Positive | None
    """The run fails if no save has become durable for this long; null: never."""
    compress: bool
    """Whether data is stored compressed, or as the difference to an earlier save, where that is
    smaller; both are lossless."""
    depth: Annotated[int, Field(ge=1, le=100)]
    """Largest number of earlier saves that a restore reads for such a difference."""
    replicas: Annotated[int, Field(ge=0, le=1)]
    """1: the memory of the next node holds a replica of each node's snapshots, so that the loss of
    a node loses none; 0: no replicas."""
    local: Text | None
    """Folder on each node's own disk (private, mode 0700) for snapshots that a preemption leaves no
    time to write to the store; null: none."""
    staging: Literal["buffers", "buckets"]
    """buffers: staging buffers in the host's memory hold the whole state of a save, and training
    continues as soon as it is copied; buckets: the state passes through small buckets, for nodes
    without memory for a copy, and training waits for the save."""
    check_replicas: Annotated[int, Field(ge=0)]
    """Number of saves between two comparisons of replicated state over ranks; 0: never. A
    checkpoint whose replicas differ is marked, and a run resumes from one that is not marked."""
    may_differ: tuple[Text, ...]
    """Patterns of names, such as model/*.usage, of replicated state that may differ between
    ranks."""
    keep: KeepSpec
    """Retention policy."""
