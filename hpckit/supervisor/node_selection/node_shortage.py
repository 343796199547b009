"""Reasons why a generation has too few nodes, and whether another try in the same job is
worthwhile. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto


class NodeShortage(Enum):
    """The reason why a generation could not start, though no stop or preemption was requested."""

    LOST = auto()
    """Nodes of the previous generation are gone."""
    UNHEALTHY = auto()
    """Nodes are there but unhealthy."""
    ABSENT = auto()
    """Too few agents said hello, and no generation of this job has started yet."""


TRIES = 2
"""How often the agents of a job's first generation are started, as what hindered them may pass."""


def shortage_of(took_part: Collection[int], unhealthy: Collection[object]) -> NodeShortage:
    """Returns why a generation did not get enough nodes.

    Args:
        took_part: nodes of the previous generation of this job.
        unhealthy: nodes that were left out.
    """
    if unhealthy:
        return NodeShortage.UNHEALTHY
    return NodeShortage.LOST if took_part else NodeShortage.ABSENT


def is_job_spent(in_a_row: Sequence[NodeShortage]) -> bool:
    """Returns whether a Slurm job cannot be expected to get enough nodes any more after these
    successive generations that could not start. The next job gets other nodes."""
    if not in_a_row:
        return False
    return in_a_row[-1] is not NodeShortage.ABSENT or len(in_a_row) >= TRIES


def blamed(absent: Collection[int], count: int) -> list[int]:
    """Returns the nodes to blame for agents that never said hello. If no agent of several nodes
    did, none is blamed, as the cause is another one (Slurm's controller, a container, the
    interpreter).

    Args:
        count: the number of nodes of the job.
    """
    return sorted(absent) if len(absent) < count or count == 1 else []
