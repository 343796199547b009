"""The run's spec: one frozen dataclass per config group, one docstring per key.

The values live in `conf/`; this file says what a key means, its type and its bounds. Nothing here
has a default, so a spec always states everything it was made of. `hpckit.run.check` holds the rules
that span groups, `hpckit.run.parse` turns plain data into a `RunSpec` or a list of violations.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints
from pydantic.dataclasses import dataclass

_CONFIG = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, StringConstraints(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Degree = Annotated[int, Field(ge=-1)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
RunName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")]
TimeLimit = Annotated[str, StringConstraints(pattern=r"^(\d{1,3}-)?\d{1,2}:\d{2}:\d{2}$")]
Memory = Annotated[str, StringConstraints(pattern=r"^[1-9]\d*[KMGT]?$")]
Folder = Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f\x7f]*$")]
Mount = Annotated[
    str, StringConstraints(pattern=r"^/[^:,\x00-\x1f\x7f]*(:/[^:,\x00-\x1f\x7f]*(:(ro|rw))?)?$")
]
Interfaces = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,-]*$")]
Value = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
EntryPoint = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


@dataclass(frozen=True, config=_CONFIG)
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


@dataclass(frozen=True, config=_CONFIG)
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


@dataclass(frozen=True, config=_CONFIG)
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


@dataclass(frozen=True, config=_CONFIG)
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
    again, which Slurm holds back for about two minutes."""
    max_parallel: Count | None
    """Runs of one `launch.py -m` that run at once; null: as many as Slurm lets."""
    collective_timeout_s: Annotated[float, Field(gt=0, le=604800)]
    """Seconds after which a collective that a peer does not join fails its rank."""
    preload: bool
    """Workers are forks of a process that has imported torch, so that a start, and above all a
    restart in place, takes some seconds less; false: each is a program of its own, for code that
    sets what torch reads when it is imported."""


@dataclass(frozen=True, config=_CONFIG)
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


@dataclass(frozen=True, config=_CONFIG)
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


@dataclass(frozen=True, config=_CONFIG)
class HangSpec:
    """Which ranks hang (`conf/hang/`). Their stacks go to the logs; then they are started again."""

    step_s: Positive | None
    """Seconds without a finished step; null: nobody looks."""
    first_step_s: Positive | None
    """The same for the first step after a start, once the state is restored."""


@dataclass(frozen=True, config=_CONFIG)
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


@dataclass(frozen=True, config=_CONFIG)
class TrainSpec:
    """The training loop."""

    steps: Annotated[int, Field(ge=1, lt=10**10)]
    """Optimizer steps of the whole run."""
    global_batch: Count
    """Samples per optimizer step over all ranks; the same on any number of nodes."""
    micro_batch: Count
    """Largest number of samples that one rank takes through the model at once."""
    seed: Seed
    """Seed of initialisation, data order and every random draw."""
    log_every: Count
    """Steps between two metric records."""


@dataclass(frozen=True, config=_CONFIG)
class ModelSpec:
    """A decoder-only transformer over bytes (`conf/model/`)."""

    layers: Count
    """Transformer blocks."""
    heads: Count
    """Attention heads; must divide `width`."""
    width: Count
    """Features of the residual stream."""
    seq_len: Annotated[int, Field(ge=2, lt=2**31)]
    """Tokens of context."""


@dataclass(frozen=True, config=_CONFIG)
class ParallelSpec:
    """How the model is spread over ranks (`conf/parallel/`); it changes no result but rounding, and
    a run may go on with another."""

    replicate: Degree
    """Groups of ranks that hold a whole copy of the model each; -1: as many as the ranks make."""
    shard: Degree
    """Neighbouring ranks that share a copy; -1: all that the other degree leaves."""
    zero: Literal[1, 2, 3]
    """What those share: 1 the optimizer's state; 2 gradients as well; 3 parameters as well, which
    are gathered layer by layer, forward and backward (Rajbhandari et al. 2020)."""
    reduce: Literal["last", "each"]
    """When gradients are added up over ranks. last: with the last micro-batch of a step, until when
    each rank holds them whole; each: with every one."""


@dataclass(frozen=True, config=_CONFIG)
class PrecisionSpec:
    """Number formats (`conf/precision/`)."""

    compute: Literal["fp32", "bf16"]
    """Format of activations and gathered parameters; master weights stay fp32."""
    reduce: Literal["fp32", "bf16"]
    """Format in which gradients are reduced over ranks."""


@dataclass(frozen=True, config=_CONFIG)
class PackSpec:
    """How shards are made where there are none yet."""

    source: str
    """Folder of files to pack, or `stdlib`: the sources of Python's standard library."""
    suffixes: tuple[str, ...]
    """File name endings to take; empty takes all."""
    exclude: tuple[str, ...]
    """Names or glob patterns of files and folders to leave out."""
    samples_per_shard: Count
    """Samples of one tar."""


@dataclass(frozen=True, config=_CONFIG)
class DataSpec:
    """The WebDataset shards to train on (`conf/data/`)."""

    shards: Text
    """Folder of tars, glob, brace pattern `{000..012}`, one tar, or a `dataset.index`; also at URLs
    such as s3://."""
    pack: PackSpec | None
    """Pack `shards` on first use; null where they must be there already."""
    prefetch: Count
    """Batches read ahead."""
    threads: Count
    """Reader threads of one rank."""
    streams: Count
    """Sequences of shards that take turns; a multiple of the nodes keeps their shards apart."""
    window: Count
    """Shards of each stream whose samples are shuffled with one another."""
    cache: Text | None
    """Folder on each node's own disk for shards that are not files there; null: they are read over
    the network, over and over."""
    cache_gb: Natural
    """The most that `cache` may hold, in GB."""


@dataclass(frozen=True, config=_CONFIG)
class OptimSpec:
    """AdamW with linear warm-up and cosine decay (`conf/optim/`)."""

    lr: Positive
    """Peak learning rate."""
    min_lr_ratio: Fraction
    """Learning rate at the last step, as a share of `lr`."""
    warmup_steps: Natural
    """Steps of linear warm-up."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Decoupled weight decay of matrices; vectors (norms, biases) get none."""
    beta1: Decay
    """Decay of the first moment."""
    beta2: Decay
    """Decay of the second moment."""
    eps: Positive
    """AdamW's epsilon."""
    grad_clip: Positive
    """Largest global gradient norm."""


@dataclass(frozen=True, config=_CONFIG)
class KeepSpec:
    """Which checkpoints outlive newer ones; a checkpoint stays while any rule keeps it."""

    last: Count
    """The newest so many."""
    every: Count | None
    """Each multiple of so many steps."""
    best: str | None
    """The one with the lowest value of this metric."""


@dataclass(frozen=True, config=_CONFIG)
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
    depth: Count
    """Earlier saves that a restore has to read for such a difference, at most."""
    replicas: Annotated[int, Field(ge=0, le=1)]
    """1: the next node's memory holds each node's snapshots too, so that a lost one loses none."""
    local: Text | None
    """Folder on each node's own disk (yours alone, mode 0700) for what a preemption leaves no time
    to bring to the store; null: none."""
    staging: Literal["slots", "buckets"]
    """slots: the state is copied to the host's memory at once; buckets: for nodes that have not the
    memory, a part at a time, and training waits until the last one is."""
    keep: KeepSpec
    """Retention."""


@dataclass(frozen=True, config=_CONFIG)
class DrillSpec:
    """Faults that the supervisor plays on itself, to see the run come through them."""

    preempt_at: tuple[Count, ...]
    """Steps at which a real SIGUSR2 is sent to the supervisor."""
    nodes: tuple[Count, ...]
    """Nodes of the 1st, 2nd, … generation, the last for all later ones; empty: `launch.nodes`."""


@dataclass(frozen=True, config=_CONFIG)
class DebugSpec:
    """Help with finding out (`conf/debug/`)."""

    ledger: bool
    """Each rank writes down the sample keys of every step, to be counted afterwards."""
    deterministic: bool
    """Only kernels with a fixed order of summation; fails where there is none."""
    drill: DrillSpec
    """A drill."""


@dataclass(frozen=True, config=_CONFIG)
class RunSpec:
    """All that a run is made of."""

    name: RunName
    """Name of the run; with the hash of what identifies it, the name of its directory."""
    entry: EntryPoint
    """The training function, `module:function`; it is called with this spec."""
    root: Text
    """Folder of the run directories."""
    cluster: ClusterSpec
    launch: LaunchSpec
    elastic: ElasticSpec
    retry: RetrySpec
    hang: HangSpec
    health: HealthSpec
    train: TrainSpec
    model: ModelSpec
    parallel: ParallelSpec
    precision: PrecisionSpec
    data: DataSpec
    optim: OptimSpec
    checkpoint: CheckpointSpec
    debug: DebugSpec
    app: dict[str, Any]
    """Your own keys; hpckit hands them to `entry` and never looks inside."""
