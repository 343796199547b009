"""Over how many ranks each way of spreading a model goes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hpckit.run.spec import ParallelSpec

REST = -1
"""A degree that takes all ranks which the others leave."""


@dataclass(frozen=True)
class Degrees:
    """Of one world: their product is its ranks. Neighbours in rank are neighbours in `shard`."""

    replicate: int
    """Groups of ranks that hold a whole copy of the model each."""
    shard: int
    """Ranks that share a copy."""

    def __str__(self) -> str:
        return f"{self.replicate} x {self.shard}"


def degrees(parallel: ParallelSpec, world: int) -> Degrees:
    """Those of `world` ranks.

    Raises:
        ValueError: they do not come out even; the text shows the arithmetic.
    """
    asked = {"replicate": parallel.replicate, "shard": parallel.shard}
    fixed = prod(degree for degree in asked.values() if degree != REST)
    rest = [name for name, degree in asked.items() if degree == REST]
    shown = " x ".join(f"{name} {degree}" for name, degree in asked.items() if degree != REST)
    if len(rest) > 1:
        raise ValueError(f"only one degree may be {REST}, the rest; got {' and '.join(rest)}")
    if rest and world % fixed:
        raise ValueError(f"{world} ranks do not divide by {shown} = {fixed}, to leave {rest[0]}")
    if not rest and fixed != world:
        raise ValueError(f"{shown} = {fixed} ranks, and there are {world}; {REST} takes the rest")
    return Degrees(**{name: world // fixed if name in rest else asked[name] for name in asked})


def describe(parallel: ParallelSpec, world: int) -> str:
    """What people call it: "ddp", "zero2", "fsdp", "hsdp 2 x 4"."""
    found = degrees(parallel, world)
    if found.shard == 1:
        return "ddp"
    name = "fsdp" if parallel.zero == 3 else f"zero{parallel.zero}"
    if found.replicate == 1:
        return name
    return f"{'hsdp' if parallel.zero == 3 else name} {found}"
