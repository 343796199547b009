"""The evaluation of checkpoints beside training."""

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
