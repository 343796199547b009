"""Whether a node may take part: what was found on it, judged. Pure."""

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
_LONGEST = 200  # characters of a tool's own words


@dataclass(frozen=True)
class ProbeFault:
    """Why a look has no answer."""

    text: str


@dataclass(frozen=True)
class ProgramOutput:
    """What a program said."""

    status: int
    text: str
    errors: str


T = TypeVar("T")
Answer: TypeAlias = T | ProbeFault | None
"""None: nobody looked, or there is nothing here to look with."""


@dataclass(frozen=True)
class NodeFacts:
    """What was found on a node."""

    gpus: Answer[ProgramOutput] = None
    """Of `nvidia.GPUS`."""
    rows: Answer[ProgramOutput] = None
    """Of `nvidia.ROWS`."""
    kernel_log: Answer[ProgramOutput] = None
    free: Mapping[str, int | ProbeFault] = field(default_factory=dict)
    """Bytes, by what they are for."""
    reached: Mapping[str, ProbeFault | None] = field(default_factory=dict)
    """What was to be read or written; None: it can be."""


@dataclass(frozen=True)
class RequiredGpus:
    """The GPUs that a node is to have."""

    count: int
    names: tuple[str, ...] = ()
    """Numbers or UUIDs of those that the job was given; empty: it is not said which."""


def wanted_gpus(spec: RunSpec, names: tuple[str, ...], *, is_told: bool) -> RequiredGpus:
    """What a node of `spec` is to have.

    Args:
        names: of the GPUs that its agent sees.
        is_told: whether they are those that the job was given, and not all that are there.
    """
    if spec.cluster.device == "cpu" or any(name.startswith("MIG") for name in names):
        return RequiredGpus(0)  # parts of GPUs cannot be told apart
    is_sure = bool(names) or spec.cluster.device == "cuda"
    fewest = spec.launch.gpus_per_node if is_sure else 0
    return (
        RequiredGpus(max(fewest, len(names)), names) if is_told and names else RequiredGpus(fewest)
    )


def problems(facts: NodeFacts, wanted: RequiredGpus, health: HealthSpec) -> list[str]:
    """Why the node is to be left out, a line each; empty if it is healthy."""
    return [
        *_gpu_problems(facts, wanted, health),
        *_disk_problems(facts, health),
        *(f"{what}: {fault.text}" for what, fault in facts.reached.items() if fault is not None),
    ]


def skew_s(said: float, earliest: float, latest: float) -> float:
    """How far a clock is off for certain, which said a time at some moment between two others of
    the clock that it is compared with; seconds, negative if it is behind."""
    return min(said - earliest, 0.0) + max(said - latest, 0.0)


def clock_problem(skew: float, health: HealthSpec) -> str | None:
    """Of a clock that is `skew` seconds off."""
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
        yield from _of_those_shown(shown, wanted, health)
    elif said is not None and wanted.count and UNKNOWN_FIELD not in said.text + said.errors:
        yield f"nvidia-smi: exit status {said.status}: {_first_line(said)}"
    if isinstance(facts.rows, ProgramOutput) and not facts.rows.status:
        bad = parse_rows(facts.rows.text)
        ours = _ours(shown, wanted)
        yield from (f"GPU {gpu.index}: {bad[gpu.uuid]}" for gpu in ours if gpu.uuid in bad)
    if isinstance(facts.kernel_log, ProgramOutput) and not facts.kernel_log.status:
        yield from _of_the_log(facts.kernel_log, shown, wanted)


def _of_those_shown(shown: list[Gpu], wanted: RequiredGpus, health: HealthSpec) -> Iterator[str]:
    ours = _ours(shown, wanted)
    if health.gpus and len(ours) < wanted.count:
        yield f"GPUs: nvidia-smi shows {len(ours)} of the {wanted.count} that the job was given"
    for gpu in ours:
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


def _of_the_log(log: ProgramOutput, shown: list[Gpu], wanted: RequiredGpus) -> Iterator[str]:
    """Also of GPUs that are not shown, as those that were lost are not."""
    ours = _ours(shown, wanted)
    foreign = {gpu.bus for gpu in shown if gpu not in ours}
    for xid in hardware_xids(log.text.splitlines()):
        if xid.bus not in foreign:
            yield f"kernel log: Xid {xid.code} of the GPU at {xid.bus}: {HARDWARE_XIDS[xid.code]}"


def _ours(shown: list[Gpu], wanted: RequiredGpus) -> list[Gpu]:
    """Those that the job was given; all if it is not said which."""
    if not wanted.names:
        return shown
    return [gpu for gpu in shown if any(_is_called(gpu, name) for name in wanted.names)]


def _is_called(gpu: Gpu, name: str) -> bool:
    return gpu.index == name or (name.startswith("GPU-") and gpu.uuid.startswith(name))


def _first_line(said: ProgramOutput) -> str:
    """As far as a terminal may show it."""
    lines = (line.strip() for line in (said.text + "\n" + said.errors).split("\n"))
    first = next((line for line in lines if line), "it said nothing")[:_LONGEST]
    return "".join(letter for letter in first if letter.isprintable())
