"""The cluster that a run uses, and the size of its job."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.earlier_attributes import EarlierAttributes
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
    """The container of agents and workers. The supervisor stays outside, where Slurm's commands
    are.

    These paths of the host are mounted under their own names: the run directory, the data, the
    checkpoints, `scratch`, and the Python environment unless `python` is given.
    """

    kind: Literal["pyxis", "apptainer"]
    """`pyxis`: srun's --container-image, by enroot; `apptainer`: `apptainer exec`."""
    image: Line
    """A file, or a name for that kind: docker://..., or registry#name for pyxis."""
    mounts: tuple[Mount, ...]
    """Further folders of the nodes: /source, /source:/target or /source:/target:ro."""
    python: Line | None
    """Interpreter in the image, which must have the dependencies of hpckit; null: the interpreter
    that launches the run."""
    options: tuple[Line, ...]
    """Further options, one word each, of srun (--container-...) or of `apptainer exec`."""


@dataclass(frozen=True, config=GROUP)
class SuspectsSpec:
    """The suspect list: nodes that runs have excluded, which other runs do without for a while."""

    folder: Folder | None
    """Folder that all nodes and login nodes see; null: ~/.local/state/hpckit/suspects, or below
    $XDG_STATE_HOME."""
    group: Line | None
    """Group whose members share the folder, which then has to be given; null: it is private."""
    hours: Annotated[float, Field(gt=0, le=336)]
    """Hours for which other runs do without a node after its problem was last seen."""
    hook: tuple[Line, ...]
    """Command that is executed, without a shell, for each suspect that a run records, with a JSON
    object on its standard input; empty: none."""


@dataclass(frozen=True, config=GROUP)
class SlurmSpec:
    """Resources and options of the Slurm job."""

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
    """Time limit of one job (--time), such as 12:00:00 or 1-00:00:00; null: the partition's
    default."""
    notice_s: Count
    """Seconds before the time limit at which Slurm signals the job to save and exit (--signal).
    Slurm may do so up to a minute earlier."""
    gpus: Literal["gpus-per-node", "gres", "none"]
    """Option of sbatch that requests GPUs; `none`: the site allocates them with the node."""
    gpu_type: Line | None
    """Type of GPU, as in --gres=gpu:TYPE:4."""
    cpus_per_node: Count | None
    """CPUs of each node; null: the site's default."""
    memory: Memory | None
    """Memory of each node, such as 64G; null: the site's default."""
    exclusive: bool
    """Whether nodes are not shared with other jobs (--exclusive)."""
    python: Line | None
    """Interpreter on the nodes; null: the interpreter that launches the run."""
    setup: tuple[Line, ...]
    """Shell lines that the batch script runs first: modules, limits, variables."""
    env: dict[str, Value | int]
    """Environment variables of the workers. No shell expands them."""
    pass_environment: tuple[Line, ...]
    """Names of variables of the launching shell that the job gets too, although Slurm, MPI or
    torchrun set them for one job; the others of that kind are left out."""
    interface: Interfaces | None
    """Network interface of the workers: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME."""
    scratch: Folder | None
    """Folder on each node's own disk for the caches of compilers. It is also the default of
    `checkpoint.local`."""
    container: ContainerSpec | None
    """Container of agents and workers; null: none."""
    options: dict[str, Line | int | bool]
    """Further options of sbatch by their long names; true for options without a value."""
    suspects: SuspectsSpec | None = None
    """Nodes that other runs have excluded; null: each run only knows its own."""


@dataclass(frozen=True, config=GROUP)
class ClusterSpec:
    """The machine or the Slurm cluster that runs the job (`conf/cluster/`)."""

    kind: Literal["local", "slurm"]
    """`local`: simulated nodes on this machine, by submitit's local executor; `slurm`: a Slurm
    job."""
    device: Literal["auto", "cpu", "cuda"]
    """Device of the workers. `auto`: CUDA if the machine has a GPU for each worker, else the
    CPU."""
    grace_s: Positive
    """Seconds between the preemption signal and the kill (Slurm's GraceTime); a save must fit
    in."""
    address: Text | None
    """Address that simulated nodes use for this machine; it must be null for Slurm."""
    slurm: SlurmSpec | None
    """Options of the Slurm job; they must be null unless `kind` is `slurm`."""


@dataclass(frozen=True, config=GROUP)
class LaunchSpec(EarlierAttributes, group="launch"):
    """The size of the job (`conf/launch/`)."""

    nodes: Count
    """Number of nodes. Each has one agent, which starts torchrun."""
    nproc_per_node: Count
    """Workers (ranks) per node, as torchrun's --nproc-per-node: one for each GPU, or any number on
    CPUs."""
    threads_per_worker: Natural
    """CPU threads of one worker (OMP_NUM_THREADS); 0: the cores of the machine are divided
    evenly."""
    continuation: Literal["chain", "requeue", "expedite", "auto", "none"]
    """How the run continues after a Slurm job that ends before the last step. chain: by a second
    job that waits in the queue from the start and is cancelled when the run is done; requeue: by
    the same job, which Slurm requeues; expedite: by the same job, which Slurm 25.11 and later
    requeue before all others after the loss of a node; auto: by the fastest of these that the site
    supports; none: only when you start it again."""
    max_parallel: Count | None
    """Most concurrent runs of one `launch.py -m`; null: as many as Slurm permits."""
    collective_timeout_s: Annotated[float, Field(gt=0, le=604800)]
    """Timeout in seconds of a collective: a rank fails if a peer does not join it in time."""
    preload: bool
    """Whether workers are forked from a process that has already imported torch, which saves
    seconds at each start and restart. false: each worker is a new process, for code that sets
    variables that torch reads when it is imported."""

    @property
    def is_requeued(self) -> bool:
        """Whether the same job continues the run, and no second one."""
        return self.continuation in ("requeue", "expedite")
