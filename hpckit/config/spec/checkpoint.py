"""When and where checkpoints are saved, how long they are kept, and how they are evaluated."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import (
    GROUP,
    Count,
    EntryPoint,
    Line,
    Memory,
    Natural,
    Positive,
    Text,
    TimeLimit,
)


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
    compress: bool | Literal["auto"]
    """Whether data is stored compressed, or as the difference to an earlier save, where that is
    smaller; both are lossless. auto: only while the store takes longer to write than that takes,
    as measured, so that a save to a fast store is durable sooner, and larger; true: always, as far
    as a deadline leaves time; false: never."""
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
    certify: Literal["auto"] | Count | None
    """auto: at some save steps each rank computes the gradients of a micro-batch of another rank
    again, and where all agree the checkpoint is certified; so seldom that it takes at most 1 % of
    the time. A number: the least steps between two such checks. null: never."""
    may_differ: tuple[Text, ...]
    """Patterns of names, such as model/*.usage, of replicated state that may differ between
    ranks."""
    keep: KeepSpec
    """Retention policy."""


@dataclass(frozen=True, config=GROUP)
class EvalSlurmSpec:
    """Where evaluations run on Slurm; a key that is null has the value of `cluster.slurm`."""

    partition: Line | None
    """Partition of the evaluations; null: that of the run."""
    account: Line | None
    """Account to charge; null: that of the run."""
    qos: Line | None
    """Quality of service; null: that of the run."""
    constraint: Line | None
    """Features that the node must have; null: those of the run."""
    cpus_per_node: Count | None
    """CPUs of an evaluation; null: as a node of the run."""
    memory: Memory | None
    """Memory of an evaluation; null: as a node of the run."""
    nice: Natural
    """By how much the priority of these jobs is lowered (--nice)."""
    options: dict[str, Line | int | bool]
    """Further options of sbatch by their long names; those of `cluster.slurm.options` do not
    apply."""


@dataclass(frozen=True, config=GROUP)
class EvalSpec:
    """Evaluation of checkpoints beside training (`conf/eval/`), by jobs of their own for which
    training never waits."""

    every: Count | None
    """Steps between two evaluations. Each such step is saved, too, and the last step has one. null:
    none."""
    entry: EntryPoint | None
    """The function `module:function` that evaluates a checkpoint and returns a mapping from names
    to numbers. It gets what its parameters are named after: `cfg`, `model`, `load`, `safetensors`,
    `step`, `device`."""
    item: Text
    """The item of the checkpoint with the weights: `model`, or `ema` for their average."""
    metric: Text | None
    """The metric, as `entry` names it, by which the best checkpoint is kept and marked "best".
    null: evaluations mark none."""
    mode: Literal["min", "max"]
    """Whether the lowest or the highest value of `metric` is best."""
    backlog: Literal["each", "newest"]
    """What happens if checkpoints are saved faster than they are evaluated. each: all of them are
    evaluated, in the order of their steps; newest: the newest ones, and older ones that wait are
    left out."""
    max_pending: Count
    """Evaluations that are queued or run at the same time; on this machine it is always one."""
    retries: Natural
    """How often an evaluation that failed or was lost is submitted again. A preempted one starts
    again without counting here."""
    keep_hours: Positive
    """Hours for which retention keeps a checkpoint that waits for its evaluation, counted up to the
    newest checkpoint."""
    nproc_per_node: Count
    """Processes of an evaluation, by torchrun if there are several; on GPUs, one for each."""
    time_limit: TimeLimit
    """Time limit of an evaluation, which fails then."""
    nice: Annotated[int, Field(ge=0, le=19)]
    """By how much the priority of an evaluation on this machine is lowered (nice); 19: it runs when
    nothing else does."""
    slurm: EvalSlurmSpec
    """Options of the jobs; they are used with cluster=slurm alone."""
