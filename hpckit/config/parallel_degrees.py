"""Over how many ranks each way of spreading a model goes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from hpckit.config.spec import ParallelSpec, RunSpec

REST = -1
"""A degree that takes all ranks which the others leave."""
NAMES = ("pipeline", "replicate", "shard", "tensor")
"""Outermost first: neighbours in rank are neighbours in the last one."""


@dataclass(frozen=True)
class ParallelDegrees:
    """Of one world: their product is its ranks."""

    pipeline: int
    """Groups of ranks that have consecutive layers each."""
    replicate: int
    """Groups of ranks that hold a whole copy of these each."""
    shard: int
    """Ranks that share a copy."""
    tensor: int
    """Ranks that compute a layer together."""
    expert: int
    """Of the ranks that have samples of their own, those that share the experts of a layer; no
    factor of the product."""

    @property
    def expert_shard(self) -> int:
        """Ranks that share a copy of the experts of one of these."""
        return shard_of_experts(self.shard, self.expert)

    @property
    def expert_replicate(self) -> int:
        """Groups of ranks that hold a copy of all experts each."""
        return self.data // (self.expert * self.expert_shard)

    @property
    def data(self) -> int:
        """Ranks that have samples of their own."""
        return self.replicate * self.shard

    @property
    def model(self) -> int:
        """Ranks that take the same samples through the model."""
        return self.pipeline * self.tensor


def shard_of_experts(shard: int, expert: int) -> int:
    """What is left of `shard` where `expert` is taken out of it first, and then of the copies."""
    return shard // gcd(shard, expert)


def degrees(parallel: ParallelSpec, world: int) -> ParallelDegrees:
    """Those of `world` ranks.

    Raises:
        ValueError: they do not come out even; the text shows the arithmetic.
    """
    asked: dict[str, int] = {name: getattr(parallel, name) for name in NAMES}
    given = {name: degree for name, degree in asked.items() if degree != REST}
    rest = [name for name in NAMES if name not in given]
    fixed = prod(given.values())
    shown = f"{_product(given)} = {fixed}"
    if len(rest) > 1:
        raise ValueError(f"only one degree may be {REST}, the rest; got {' and '.join(rest)}")
    if rest and world % fixed:
        raise ValueError(f"{world} ranks do not divide by {shown}, to leave {rest[0]}")
    if not rest and fixed != world:
        raise ValueError(f"{shown} ranks, and there are {world}; {REST} takes the rest")
    found = ParallelDegrees(
        **{name: given.get(name, world // fixed) for name in NAMES}, expert=parallel.expert
    )
    if found.data % found.expert:
        shown = _product({"replicate": found.replicate, "shard": found.shard})
        raise ValueError(
            f"{shown} = {found.data} ranks do not divide by expert {found.expert}, to share experts"
        )
    return found


def gathers_layers(zero: int, found: ParallelDegrees) -> bool:
    """Whether parameters that ranks share are gathered layer by layer, forward and backward, and
    not once a step. The micro-batches of a pipeline take turns: it would gather each layer for each
    of them."""
    return zero == 3 and found.pipeline == 1


def is_wrapped(spec: RunSpec, world: int) -> bool:
    """Whether FSDP2 has anything to do for a model on `world` ranks: not where each layer is on one
    rank alone, in its memory, and all is in fp32.

    Of other formats it casts parameters and what goes from block to block, and adds gradients up.
    Its hooks and its DTensors cost milliseconds of each step (`benchmarks/README.md`).
    """
    formats = {spec.precision.compute, spec.precision.reduce, spec.precision.master}
    found = degrees(spec.parallel, world)
    return found.data * found.tensor > 1 or spec.memory.offload or formats != {"fp32"}


def describe(parallel: ParallelSpec, world: int) -> str:
    """What people call it: "ddp", "zero2", "fsdp", "hsdp 2 x 4", "tp 4, fsdp", "ep 4, fsdp"."""
    found = degrees(parallel, world)
    parts = [f"pp {found.pipeline} ({parallel.schedule})"] if found.pipeline > 1 else []
    if found.tensor > 1:
        parts.append(f"tp {found.tensor}")
    if found.expert > 1:
        parts.append(f"ep {found.expert}")
    if found.data > 1 or not parts:
        parts.append(_of_data(parallel, found))
    return ", ".join(parts)


def _of_data(parallel: ParallelSpec, found: ParallelDegrees) -> str:
    if found.shard == 1:
        return "ddp"
    name = "fsdp" if parallel.zero == 3 else f"zero{parallel.zero}"
    if found.replicate == 1:
        return name
    return f"{'hsdp' if parallel.zero == 3 else name} {found.replicate} x {found.shard}"


def _product(degrees: dict[str, int]) -> str:
    """All but those that are 1, unless all are."""
    shown = {name: degree for name, degree in degrees.items() if degree > 1} or degrees
    return " x ".join(f"{name} {degree}" for name, degree in shown.items())


def stages_per_rank(parallel: ParallelSpec) -> int:
    """Parts of the model that each rank of a pipeline has."""
    return 2 if parallel.schedule == "interleaved" else 1


def stage_count(parallel: ParallelSpec, ranks: int) -> int:
    """Parts into which a pipeline of so many ranks divides a model."""
    return ranks * stages_per_rank(parallel) if ranks > 1 else 1


def blocks_of_stages(layers: int, stages: int) -> list[range]:
    """The blocks of each part of a model, as even as they can be; the first parts get what is left,
    since the last one computes the output layer, too."""
    ends = [-(-layers * number // stages) for number in range(stages + 1)]
    return [range(ends[number], ends[number + 1]) for number in range(stages)]
