"""Where a run runs, and how large the job is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import (
    GROUP,
    Count,
    Folder,
    Interfaces,
    Line,
    Memory,
    Mount,
    Natural,
    Positive,
    Text,
    TimeLimit,
    Value,
)


@dataclass(frozen=True, config=GROUP)
class ContainerSpec:
    """What agents and workers run in; the supervisor stays outside, where Slurm's commands are.

    What a run needs of the host is mounted under its own name: the run's folder, its data, its
    checkpoints, `scratch`, and the Python environment unless `python` says otherwise.
    """

    kind: Literal["pyxis", "apptainer"]
    """`pyxis`: srun's --container-image, by enroot; `apptainer`: `apptainer exec`."""
    image: Line
    """A file, or a name that the kind knows: docker://..., or registry#name for pyxis."""
    mounts: tuple[Mount, ...]
    """Further folders of the nodes: /source, /source:/target or /source:/target:ro."""
    python: Line | None
    """Interpreter in the image, with all that hpckit depends on; null: the one that launches."""
    options: tuple[Line, ...]
    """Further options, word by word: of srun (--container-...) or of `apptainer exec`."""


@dataclass(frozen=True, config=GROUP)
class SlurmSpec:
    """What the job asks of Slurm."""

    partition: Line | None
    """Partition; null: the site's default."""
    account: Line | None
    """Account to charge."""
    qos: Line | None
    """Quality of service."""
    constraint: Line | None
    """Features that the nodes must have."""
    reservation: Line | None
    """Reservation to use."""
    exclude: tuple[Line, ...]
    """Nodes that the job must not get."""
    time_limit: TimeLimit | None
    """Longest time of one generation, as 12:00:00 or 1-00:00:00; null: the partition's default."""
    notice_s: Count
    """Seconds before the time limit at which Slurm tells the job to save and leave; it may do so a
    minute earlier."""
    gpus: Literal["gpus-per-node", "gres", "none"]
    """The option by which GPUs are asked for; `none`: the site gives them with the node."""
    gpu_type: Line | None
    """Type of GPU, as in --gres=gpu:TYPE:4."""
    cpus_per_node: Count | None
    """CPUs of each node; null: the site's default."""
    memory: Memory | None
    """Memory of each node, as 64G; null: the site's default."""
    exclusive: bool
    """Whole nodes, shared with nobody."""
    python: Line | None
    """Interpreter on the nodes; null: the one that launches."""
    setup: tuple[Line, ...]
    """Lines of shell that the batch script runs first: modules, limits, variables."""
    env: dict[str, Value | int]
    """Variables of the workers' environment. They are never seen by a shell."""
    interface: Interfaces | None
    """Network interface of the workers: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME."""
    scratch: Folder | None
    """Folder on each node's own disk. Compilers' caches go there, and `checkpoint.local` where that
    is null."""
    container: ContainerSpec | None
    """null: none."""
    options: dict[str, Line | int | bool]
    """Further options of sbatch by their long names; true for those without a value."""


@dataclass(frozen=True, config=GROUP)
class ClusterSpec:
    """Where the run runs (`conf/cluster/`)."""

    kind: Literal["local", "slurm"]
    """`local`: submitit's local executor, simulated nodes on this machine; `slurm`: a job."""
    device: Literal["auto", "cpu", "cuda"]
    """`auto` takes CUDA where this machine has a GPU for every worker, else the CPU."""
    grace_s: Positive
    """Seconds between a preemption signal and the kill; the save has to fit."""
    address: Text | None
    """Address of this machine that simulated nodes use; null for Slurm, whose nodes know theirs."""
    slurm: SlurmSpec | None
    """Of the kind `slurm`; null otherwise."""


@dataclass(frozen=True, config=GROUP)
class LaunchSpec:
    """The size of the job (`conf/launch/`)."""

    nodes: Count
    """Nodes of the job; each gets one node agent with its own torchrun."""
    gpus_per_node: Count
    """Workers (ranks) per node: one per GPU, or per CPU slot where there is none."""
    threads_per_worker: Natural
    """CPU threads of one worker (OMP_NUM_THREADS); 0 shares the machine's cores evenly."""
    continuation: Literal["chain", "requeue", "none"]
    """What a Slurm job that has to leave before the end is followed by. chain: another job, which
    waits from the start on and is cancelled when there is nothing left to do; requeue: the same job
    again, some seconds later."""
    max_parallel: Count | None
    """Runs of one `launch.py -m` that run at once; null: as many as Slurm lets."""
    collective_timeout_s: Annotated[float, Field(gt=0, le=604800)]
    """Seconds after which a collective that a peer does not join fails its rank."""
    preload: bool
    """Workers are forks of a process that has imported torch, so that a start, and above all a
    restart in place, takes some seconds less; false: each is a program of its own, for code that
    sets what torch reads when it is imported."""
