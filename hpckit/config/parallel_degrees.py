"""The number of ranks of each kind of parallelism, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from hpckit.config.spec import ParallelSpec, RunSpec
from hpckit.text.quantities import count

REST = -1
"""The degree that stands for all ranks which remain after the other degrees."""
NAMES = ("pipeline", "replicate", "shard", "tensor")
"""Kinds of parallelism, outermost first: ranks with successive numbers are neighbours in the last
kind."""


@dataclass(frozen=True)
class ParallelDegrees:
    """The parallel degrees of one world; their product, without `expert`, is its number of
    ranks."""

    pipeline: int
    """Number of groups of ranks that each hold consecutive layers."""
    replicate: int
    """Number of groups of ranks that each hold a whole copy of these layers."""
    shard: int
    """Number of ranks over which a copy is sharded."""
    tensor: int
    """Number of ranks that compute a layer together."""
    expert: int
    """Number of ranks, among those with samples of their own, over which the experts of a layer are
    divided; not a factor of the product."""

    @property
    def expert_shard(self) -> int:
        """Number of ranks over which a copy of one of these ranks' experts is sharded."""
        return shard_of_experts(self.shard, self.expert)

    @property
    def expert_replicate(self) -> int:
        """Number of groups of ranks that each hold a copy of all experts."""
        return self.data // (self.expert * self.expert_shard)

    @property
    def data(self) -> int:
        """Number of ranks that have samples of their own."""
        return self.replicate * self.shard

    @property
    def model(self) -> int:
        """Number of ranks that take the same samples through the model."""
        return self.pipeline * self.tensor


def shard_of_experts(shard: int, expert: int) -> int:
    """Returns the shard degree of experts: `expert` divides `shard` first, and then the copies."""
    return shard // gcd(shard, expert)


def degrees(parallel: ParallelSpec, world: int) -> ParallelDegrees:
    """Returns the degrees of `world` ranks.

    Raises:
        ValueError: the degrees do not divide or multiply to `world`; the text shows the arithmetic.
    """
    asked: dict[str, int] = {name: getattr(parallel, name) for name in NAMES}
    given = {name: degree for name, degree in asked.items() if degree != REST}
    rest = [name for name in NAMES if name not in given]
    fixed = prod(given.values())
    shown = f"{_product(given)} = {fixed}"
    if len(rest) > 1:
        raise ValueError(
            f"only one degree may be {REST} (all remaining ranks); got {' and '.join(rest)}"
        )
    if rest and world % fixed:
        divisor = _product(given) if fixed in given.values() else shown
        raise ValueError(
            f"{count(world, 'rank')} cannot be divided by {divisor}, so parallel.{rest[0]}={REST} "
            "has no value"
        )
    if not rest and fixed != world:
        raise ValueError(
            f"{shown} ranks, but there are {world}; {REST} for one degree takes all remaining ranks"
        )
    found = ParallelDegrees(
        **{name: given.get(name, world // fixed) for name in NAMES}, expert=parallel.expert
    )
    if found.data % found.expert:
        shown = _product({"replicate": found.replicate, "shard": found.shard})
        raise ValueError(
            f"{shown} = {found.data} ranks, which share experts, cannot be divided by expert "
            f"{found.expert}"
        )
    return found


def gathers_layers(zero: int, found: ParallelDegrees) -> bool:
    """Returns whether sharded parameters are gathered layer by layer in forward and backward, and
    not once a step. A pipeline would gather each layer for each of its interleaved
    micro-batches."""
    return zero == 3 and found.pipeline == 1


def is_wrapped(spec: RunSpec, world: int) -> bool:
    """Returns whether FSDP2 is needed for a model on `world` ranks. It is not needed if each layer
    is on only one rank, in that rank's memory, and all is in fp32.

    With other formats, FSDP2 casts parameters and the activations between blocks, and sums
    gradients. Its hooks and its DTensors cost milliseconds of each step (`benchmarks/README.md`).
    """
    formats = {spec.precision.compute, spec.precision.reduce, spec.precision.master}
    found = degrees(spec.parallel, world)
    return found.data * found.tensor > 1 or spec.memory.cpu_offload or formats != {"fp32"}


def describe_layout(parallel: ParallelSpec, world: int) -> str:
    """Returns the usual name of the parallelism: "ddp", "zero2", "fsdp", "hsdp 2 x 4", "tp 4,
    fsdp", "ep 4, fsdp"."""
    found = degrees(parallel, world)
    parts = [f"pp {found.pipeline} ({parallel.schedule})"] if found.pipeline > 1 else []
    if found.tensor > 1:
        parts.append(f"tp {found.tensor}")
    if found.expert > 1:
        parts.append(f"ep {found.expert}")
    if found.data > 1 or not parts:
        parts.append(_data_name(parallel, found))
    return ", ".join(parts)


def _data_name(parallel: ParallelSpec, found: ParallelDegrees) -> str:
    if found.shard == 1:
        return "ddp"
    name = "fsdp" if parallel.zero == 3 else f"zero{parallel.zero}"
    if found.replicate == 1:
        return name
    return f"{'hsdp' if parallel.zero == 3 else name} {found.replicate} x {found.shard}"


def _product(degrees: dict[str, int]) -> str:
    """Formats degrees, and omits those that are 1 unless all are."""
    shown = {name: degree for name, degree in degrees.items() if degree > 1} or degrees
    return " x ".join(f"{name} {degree}" for name, degree in shown.items())


def stages_per_rank(parallel: ParallelSpec) -> int:
    """Returns the number of pipeline stages on each rank of a pipeline."""
    return 2 if parallel.schedule == "interleaved" else 1


def stage_count(parallel: ParallelSpec, ranks: int) -> int:
    """Returns the number of pipeline stages of a pipeline of `ranks` ranks."""
    return ranks * stages_per_rank(parallel) if ranks > 1 else 1


def blocks_of_stages(layers: int, stages: int) -> list[range]:
    """Returns the blocks of each stage, divided as evenly as possible. The first stages get the
    remainder, as the last one also computes the output layer."""
    ends = [-(-layers * number // stages) for number in range(stages + 1)]
    return [range(ends[number], ends[number + 1]) for number in range(stages)]
