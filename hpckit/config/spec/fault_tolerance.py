"""How a run reacts to failures."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.earlier_attributes import EarlierAttributes
from hpckit.config.spec.field_types import GROUP, Count, Fraction, Natural, Positive


@dataclass(frozen=True, config=GROUP)
class ElasticSpec:
    """How the job continues after it lost a node (`conf/elastic/`)."""

    spares: Natural
    """Number of spare nodes that the job requests beside `launch.nodes`."""
    min_nodes: Count | None
    """Smallest number of nodes to start and continue with; null: `launch.nodes`."""
    scale_lr: Literal["linear", "sqrt"] | None
    """What changes on another number of nodes than `launch.nodes`. null: nothing; the global batch
    stays the same, by more gradient accumulation. linear, sqrt: the batch of a rank stays the same,
    and the learning rate is scaled with the global batch, linearly (Goyal et al. 2017, for SGD) or
    with its square root (Malladi et al. 2022, for Adam)."""
    evict_stragglers: Literal["spare", "job"] | None = None
    """What replaces a node that slows all others down, if the steps that are left become shorter by
    more than twice the time of a restart: spare: a spare node of the job; job: the nodes of the
    next job, if there is no spare. The ranks save before it. null: nothing, slow nodes are only
    reported."""
    evict_most: Count = 2
    """Largest number of nodes that are replaced within `evict_within_hours`; no node is replaced
    twice, and none after a replacement that has not paid."""
    evict_within_hours: Positive = 24.0
    """Hours for `evict_most`."""
    evict_evidence_minutes: Positive = 10.0
    """Minutes for which the same nodes have to be slow in each window of traced steps, and at least
    two windows."""


@dataclass(frozen=True, config=GROUP)
class RetrySpec(EarlierAttributes, group="retry"):
    """How many failures in a row, without progress in between, are retried (`conf/retry/`)."""

    max_restarts: Natural
    """Restarts of the workers within one generation (torchrun's --max-restarts)."""
    crash: Natural
    """Further generations after a worker failed and no restart in place is left."""
    infra: Natural
    """Further generations after a node agent or its node was lost."""
    hang: Natural
    """Further generations after ranks hung, and a restart did not help."""
    oom: Natural
    """Further generations after a GPU or a node ran out of memory. Workers that ran out of memory
    twice at the same step are not restarted in place."""
    jobs_without_checkpoint: Count | None = None
    """Slurm jobs in a row that end without a new checkpoint, for whatever reason, after which the
    run ends; preemptions and time limits count, too. null: any number."""
    node_hours_without_checkpoint: Positive | None = None
    """Node-hours that such jobs may use, if they are at least two; null: any number."""


@dataclass(frozen=True, config=GROUP)
class HangSpec:
    """Timeouts that detect hung ranks (`conf/hang/`). Stacks are logged, and ranks are
    restarted."""

    step_s: Positive | None
    """Seconds without a finished step; null: no timeout."""
    first_step_s: Positive | None
    """The same for the first step after a start, counted from the restore of the state."""
    start_s: Positive | None
    """Seconds from the first heartbeat of a rank until its state is restored: to build the model
    and to read the checkpoint; null: no timeout."""
    validate_s: Positive | None
    """Seconds without a batch of `run.evaluate` during a validation, or of a whole validation that
    does not use it; null: no timeout."""
    save_s: Positive | None
    """Seconds of a save that training waits for, such as the last one, which waits for the store;
    null: no timeout."""
    output_s: Positive | None = None
    """Seconds without output of a program whose steps are observed (`command.step_pattern`,
    `command.tensorboard_dir`), or three times its longest interval between two steps, if that is
    longer; null: no timeout. With other output, it has to finish a step within `validate_s`."""


@dataclass(frozen=True, config=GROUP)
class DeepHealthSpec:
    """Measurements of all nodes and ranks, which take minutes. A share says below which part of the
    median of the others a measurement counts as slow; from three nodes, or ranks of one node, on.
    Wrong results count in any case."""

    first: bool
    """Whether to measure before the first generation of a job that has nodes which this run has not
    measured within `valid_hours`."""
    after_suspicion: bool
    """Whether to measure before a generation if, since the last measurement, ranks hung, a node or
    its agent was lost, a rank was a straggler, or a loss was not finite."""
    valid_hours: Positive
    """Hours for which the result about a node holds."""
    exclude_slow: bool
    """Whether a slow node is left out, as one with a wrong result always is; else it is only
    reported."""
    timeout_s: Positive
    """Seconds for all measurements, after which the run begins without a result."""
    seconds: Positive
    """Seconds of each single measurement."""
    slow_matrix: Fraction
    """Share for matrix products. Equal GPUs differ by up to a tenth, by clocks and cooling."""
    slow_memory: Fraction
    """Share for the bandwidth of memory, which equal devices have within a few percent."""
    slow_transfer: Fraction
    """Share for copies between host and GPU. A PCIe link that has lost half its lanes is at 0.5."""
    slow_link: Fraction
    """Share for pairs of nodes, and of ranks in a node. Healthy links of one kind differ by a few
    percent; a link at half its width, or a cable with errors, is at 0.5 or less."""
    slow_disk: Fraction
    """Share for the disk of TMPDIR or `cluster.slurm.scratch`. Healthy disks of one kind differ
    much, by their wear and by what else uses them."""
    slow_store: Fraction
    """Share for the checkpoint store, which other jobs use at the same time."""


@dataclass(frozen=True, config=GROUP)
class HealSpec:
    """What a run does about a spike of its loss, gradient norm or loss scale (`conf/heal/`).

    Every step is checked, for which all ranks wait for its loss. Samples are left out for the rest
    of the run, on any number of ranks."""

    on_spike: Literal["rollback", "skip"] | None
    """rollback: the run continues from the newest checkpoint before the spike, without the samples
    of its steps; it needs a `data.Loader`. skip: the optimizer does not make a step with an
    outlier; the training function has to ask `run.should_update`. null: spikes are not looked
    for."""
    deviations: Annotated[float, Field(ge=3, le=1000)]
    """A value is an outlier if it is so many times the spread of the earlier steps above their
    median; of `grad_norm`, the logarithms are compared. NaN and infinity are always outliers."""
    window: Annotated[int, Field(ge=16, le=10_000)]
    """Number of earlier steps with which a step is compared. No step is an outlier before there
    were 16."""
    patience: Count
    """Number of steps in a row with an outlier that are a spike; after one that is NaN or infinite,
    the run does not wait for more. It has to be 1 with skip."""
    before: Natural
    """Number of steps before the first outlier whose samples are left out, too. It has to be 0 with
    skip."""
    most: Count
    """Largest number of rollbacks, or of updates left out, within `within` steps; with one more
    spike, the run ends."""
    within: Count
    """Number of steps for `most`."""


@dataclass(frozen=True, config=GROUP)
class HealthSpec:
    """Checks of each node before it trains (`conf/health/`). A node with a problem is excluded from
    this job and from the jobs that follow."""

    gpus: bool
    """Whether to check with nvidia-smi that the GPUs are there and need no memory repair. There is
    no such check with `cluster.device=cpu`."""
    ecc_errors: Natural | None
    """Accepted number of uncorrected memory errors of a GPU since its driver was loaded; null:
    any."""
    xids: bool
    """Whether to search the kernel log, if it is readable, for Xid errors of GPUs that need a reset
    or an inspection. There is no such check with `cluster.device=cpu`."""
    disk_free_gib: Positive | None
    """GiB of free space that the run directory, `cluster.slurm.scratch` and TMPDIR need; null: no
    check."""
    mounts: bool
    """Whether to check that the run directory and the checkpoint folder are writable, and the
    shards readable."""
    clock_skew_s: Positive | None
    """Accepted difference to the clock of the supervisor in seconds; null: no check."""
    all_reduce: bool
    """Whether all ranks check the result of an all-reduce after the rendezvous."""
    probe_s: Annotated[float, Field(gt=0, le=60)]
    """Timeout in seconds of each check; a check that times out is a problem, such as a dead
    mount."""
    deep: DeepHealthSpec | None = None
    """Measurements that take minutes (`health=deep`); null: none."""
