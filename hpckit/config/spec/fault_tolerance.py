"""What becomes of a run that meets a failure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Count, Natural, Positive


@dataclass(frozen=True, config=GROUP)
class ElasticSpec:
    """What becomes of the job when it loses a node (`conf/elastic/`)."""

    spares: Natural
    """Nodes beside `launch.nodes` that the job has, if it can get them, and that stand by."""
    min_nodes: Count | None
    """Fewest nodes that the run begins and goes on with; null: `launch.nodes`."""
    scale_lr: Literal["linear", "sqrt"] | None
    """On other than `launch.nodes` nodes. null: the global batch stays, and a rank takes more of
    it; linear, sqrt: a rank's share stays, so the batch changes, and the learning rate with it: in
    proportion (Goyal et al. 2017, for SGD), or by the root (Malladi et al. 2022, for Adam)."""


@dataclass(frozen=True, config=GROUP)
class RetrySpec:
    """How often to go on after a failure, counted without progress in between (`conf/retry/`)."""

    in_place: Natural
    """Restarts of the workers inside one generation (torchrun's --max-restarts)."""
    crash: Natural
    """Further generations after a worker failed for good in one."""
    infra: Natural
    """Further generations after a node agent or its node was lost."""
    hang: Natural
    """Further generations after ranks that hang were started again in vain."""
    oom: Natural
    """Further generations after the memory of a GPU or of a node ran out. In place, what ran out
    twice in a row at one step is not tried again."""


@dataclass(frozen=True, config=GROUP)
class HangSpec:
    """Which ranks hang (`conf/hang/`). Their stacks go to the logs; then they are started again."""

    step_s: Positive | None
    """Seconds without a finished step; null: nobody looks."""
    first_step_s: Positive | None
    """The same for the first step after a start, once the state is restored."""
    start_s: Positive | None
    """Seconds from the first word of a rank until its state is restored: to build the model, to
    read the checkpoint; null: nobody looks."""
    validate_s: Positive | None
    """Seconds without a batch of `run.evaluate` while it validates, or of a whole validation that
    does not use that; null: nobody looks."""
    save_s: Positive | None
    """Seconds of a save that training waits for, the last one among them, which takes as long as
    the store does; null: nobody looks."""


@dataclass(frozen=True, config=GROUP)
class HealthSpec:
    """What a node is looked at for before it takes part (`conf/health/`). One with a problem is
    left out, and jobs that follow do not get it."""

    gpus: bool
    """Whether nvidia-smi shows the GPUs, and their memory waits for no repair; never with
    `cluster.device=cpu`."""
    ecc_errors: Natural | None
    """Uncorrected errors of a GPU's memory, since its driver was loaded, that are let pass; null:
    any number."""
    xids: bool
    """Whether the kernel's log, where it may be read, tells of a GPU that has to be reset or looked
    after; never with `cluster.device=cpu`."""
    disk_free_gib: Positive | None
    """GiB that have to be free for the run directory, `cluster.slurm.scratch` and TMPDIR; null:
    nobody looks."""
    mounts: bool
    """Whether the run directory and a folder of checkpoints can be written, and one of shards be
    read."""
    clock_skew_s: Positive | None
    """Seconds that the clock may differ from the supervisor's; null: nobody looks."""
    all_reduce: bool
    """Whether ranks that have met add up a few numbers, and see that the sum is right."""
    probe_s: Annotated[float, Field(gt=0, le=60)]
    """Seconds after which a look without an answer is a problem itself: a dead mount, a driver."""
