"""Choice of the nodes of a job that take part in its next generation, as pure functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeRequirement:
    """The number of nodes that a generation needs.

    Attributes:
        wanted: the number to use, and the most that are used.
        fewest: the least number with which the generation starts.
        fits: whether a number of nodes can divide the work.
    """

    wanted: int
    fewest: int
    fits: Callable[[int], bool]


def choose_nodes(
    there: Collection[int], before: Sequence[int], need: NodeRequirement
) -> tuple[int, ...]:
    """Returns the nodes to start the generation on in ascending order, or none if too few are
    there.

    Args:
        there: nodes whose agents have said hello.
        before: nodes of the previous generation. They are preferred, as they have its snapshots in
            memory and its shards on their disks.
    """
    known = frozenset(before)
    ready = sorted(there, key=lambda node: (node not in known, node))
    for count in range(min(need.wanted, len(ready)), need.fewest - 1, -1):
        if need.fits(count):
            return tuple(sorted(ready[:count]))
    return ()
