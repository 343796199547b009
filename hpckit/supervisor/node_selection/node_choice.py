"""Which nodes of a job take part in its next generation: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeRequirement:
    """How many nodes a generation is to have.

    Attributes:
        wanted: as many as there are to be, and no more.
        fewest: with fewer it is not begun.
        fits: whether so many can share the work.
    """

    wanted: int
    fewest: int
    fits: Callable[[int], bool]


def choose_nodes(
    there: Collection[int], before: Sequence[int], need: NodeRequirement
) -> tuple[int, ...]:
    """The nodes to begin with, ascending; empty if too few are there.

    Args:
        there: nodes whose agents have answered.
        before: the nodes of the generation before, which have its snapshots in memory and its
            shards on their disks: they come first.
    """
    ready = sorted(there, key=lambda node: (node not in before, node))
    for count in range(min(need.wanted, len(ready)), need.fewest - 1, -1):
        if need.fits(count):
            return tuple(sorted(ready[:count]))
    return ()
