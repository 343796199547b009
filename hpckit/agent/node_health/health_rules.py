"""Rules that judge from a node's probe results whether it may take part. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from hpckit.agent.node_health.nvidia import (
    HARDWARE_XIDS,
    UNKNOWN_FIELD,
    Gpu,
    hardware_xids,
    parse_gpus,
    parse_rows,
)
from hpckit.config.spec import HealthSpec, RunSpec

GIB = 1 << 30
_MAX_CHARACTERS = 200  # characters of a tool's output


@dataclass(frozen=True)
class ProbeFault:
    """Why a probe has no result."""

    text: str


@dataclass(frozen=True)
class ProgramOutput:
    """The exit status and output of a program."""

    status: int
    text: str
    errors: str


T = TypeVar("T")
Answer: TypeAlias = T | ProbeFault | None
"""The result of a probe. None: not probed, or no tool for it is installed."""


@dataclass(frozen=True)
class NodeFacts:
    """The probe results of a node."""

    gpus: Answer[ProgramOutput] = None
    """Output of `nvidia.GPUS`."""
    rows: Answer[ProgramOutput] = None
    """Output of `nvidia.ROWS`."""
    kernel_log: Answer[ProgramOutput] = None
    free: Mapping[str, int | ProbeFault] = field(default_factory=dict)
    """Free bytes of each disk, by its description."""
    reached: Mapping[str, ProbeFault | None] = field(default_factory=dict)
    """Access checks by description; None: the access works."""


@dataclass(frozen=True)
class RequiredGpus:
    """The GPUs that a node must have."""

    count: int
    names: tuple[str, ...] = ()
    """Numbers or UUIDs of the GPUs that the job was given; empty: unknown."""


def wanted_gpus(spec: RunSpec, names: tuple[str, ...], *, is_given: bool) -> RequiredGpus:
    """Returns the GPUs that a node of `spec` must have.

    Args:
        names: GPUs that the node's agent sees.
        is_given: whether `names` are the GPUs that the job was given, and not all GPUs of the node.
    """
    if spec.cluster.device == "cpu" or any(name.startswith("MIG") for name in names):
        return RequiredGpus(0)  # parts of GPUs cannot be identified
    is_sure = bool(names) or spec.cluster.device == "cuda"
    fewest = spec.launch.nproc_per_node if is_sure else 0
    return (
        RequiredGpus(max(fewest, len(names)), names) if is_given and names else RequiredGpus(fewest)
    )


def problems(facts: NodeFacts, wanted: RequiredGpus, health: HealthSpec) -> list[str]:
    """Returns why the node is to be left out, a line for each problem; empty if it is healthy."""
    return [
        *_gpu_problems(facts, wanted, health),
        *_disk_problems(facts, health),
        *(f"{what}: {fault.text}" for what, fault in facts.reached.items() if fault is not None),
    ]


def skew_s(said: float, earliest: float, latest: float) -> float:
    """Returns the least possible offset of a clock in seconds, negative if it is behind, where it
    showed the time `said` at some moment between two times of the reference clock."""
    return min(said - earliest, 0.0) + max(said - latest, 0.0)


def clock_problem(skew: float, health: HealthSpec) -> str | None:
    """Returns the problem of a clock that is `skew` seconds off, if it is one."""
    if health.clock_skew_s is None or abs(skew) <= health.clock_skew_s:
        return None
    which = "ahead of" if skew > 0 else "behind"
    return (
        f"clock: {abs(skew):.0f} s {which} the supervisor's, more than "
        f"health.clock_skew_s={health.clock_skew_s:g}"
    )


def _disk_problems(facts: NodeFacts, health: HealthSpec) -> Iterator[str]:
    for what, free in facts.free.items():
        if isinstance(free, ProbeFault):
            yield f"{what}: {free.text}"
        elif health.disk_free_gib is not None and free < health.disk_free_gib * GIB:
            yield (
                f"{what}: {free / GIB:.1f} GiB free, less than "
                f"health.disk_free_gib={health.disk_free_gib:g}"
            )


def _gpu_problems(facts: NodeFacts, wanted: RequiredGpus, health: HealthSpec) -> Iterator[str]:
    shown: list[Gpu] = []
    said = facts.gpus
    if isinstance(said, ProbeFault):
        yield f"nvidia-smi: {said.text}"
    elif said is not None and not said.status:
        shown = parse_gpus(said.text)
        yield from _listed_gpu_problems(shown, wanted, health)
    elif said is not None and wanted.count and UNKNOWN_FIELD not in said.text + said.errors:
        yield f"nvidia-smi: exit status {said.status}: {_first_line(said)}"
    if isinstance(facts.rows, ProgramOutput) and not facts.rows.status:
        bad = parse_rows(facts.rows.text)
        job_gpus = _job_gpus(shown, wanted)
        yield from (f"GPU {gpu.index}: {bad[gpu.uuid]}" for gpu in job_gpus if gpu.uuid in bad)
    if isinstance(facts.kernel_log, ProgramOutput) and not facts.kernel_log.status:
        yield from _log_problems(facts.kernel_log, shown, wanted)


def _listed_gpu_problems(
    shown: list[Gpu], wanted: RequiredGpus, health: HealthSpec
) -> Iterator[str]:
    job_gpus = _job_gpus(shown, wanted)
    if health.gpus and len(job_gpus) < wanted.count:
        yield f"GPUs: nvidia-smi shows {len(job_gpus)} of the {wanted.count} that the job was given"
    for gpu in job_gpus:
        if health.gpus and gpu.broken is not None:
            yield f"GPU {gpu.index}: {gpu.broken}"
        if health.gpus and gpu.is_page_pending:
            yield f"GPU {gpu.index}: pages of its memory wait for a reset to be retired"
        limit = health.ecc_errors
        if limit is not None and gpu.ecc_errors is not None and gpu.ecc_errors > limit:
            yield (
                f"GPU {gpu.index}: {gpu.ecc_errors} uncorrected memory errors, more than "
                f"health.ecc_errors={limit}"
            )


def _log_problems(log: ProgramOutput, shown: list[Gpu], wanted: RequiredGpus) -> Iterator[str]:
    """Yields the hardware faults of the job's GPUs and of GPUs that nvidia-smi does not list, as it
    does not list lost ones."""
    job_gpus = _job_gpus(shown, wanted)
    foreign = {gpu.bus for gpu in shown if gpu not in job_gpus}
    for xid in hardware_xids(log.text.splitlines()):
        if xid.bus not in foreign:
            yield f"kernel log: Xid {xid.code} of the GPU at {xid.bus}: {HARDWARE_XIDS[xid.code]}"


def _job_gpus(shown: list[Gpu], wanted: RequiredGpus) -> list[Gpu]:
    """Returns the GPUs that the job was given, or all if these are unknown."""
    if not wanted.names:
        return shown
    return [gpu for gpu in shown if any(_is_called(gpu, name) for name in wanted.names)]


def _is_called(gpu: Gpu, name: str) -> bool:
    return gpu.index == name or (name.startswith("GPU-") and gpu.uuid.startswith(name))


def _first_line(said: ProgramOutput) -> str:
    """Returns the first line of the output, shortened and with only printable characters."""
    lines = (line.strip() for line in (said.text + "\n" + said.errors).split("\n"))
    first = next((line for line in lines if line), "it printed nothing")[:_MAX_CHARACTERS]
    return "".join(letter for letter in first if letter.isprintable())
