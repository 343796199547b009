"""Too few nodes for a generation: why, and whether their job is worth another try. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto


class NodeShortage(Enum):
    """Why a generation could not begin, though nothing else was asked."""

    LOST = auto()
    """Nodes that the generation before had are gone."""
    UNHEALTHY = auto()
    """Nodes are there that are to be left out."""
    ABSENT = auto()
    """Too few agents came; no generation of this job has begun yet."""


TRIES = 2
"""So often the agents of a job's first generation are called: what hindered them may pass."""


def shortage_of(took_part: Collection[int], unhealthy: Collection[object]) -> NodeShortage:
    """What a generation lacks that did not get enough nodes.

    Args:
        took_part: nodes of the generation before, in this job.
        unhealthy: nodes that were left out.
    """
    if unhealthy:
        return NodeShortage.UNHEALTHY
    return NodeShortage.LOST if took_part else NodeShortage.ABSENT


def is_job_spent(in_a_row: Sequence[NodeShortage]) -> bool:
    """Whether a job of Slurm's cannot be expected to get enough nodes together any more, after
    these generations that could not begin: the next job has others."""
    if not in_a_row:
        return False
    return in_a_row[-1] is not NodeShortage.ABSENT or len(in_a_row) >= TRIES


def blamed(absent: Collection[int], count: int) -> list[int]:
    """The nodes that are at fault for agents that never came: none where no agent at all did, of
    several, as that has another cause (Slurm's controller, a container, the interpreter).

    Args:
        count: nodes of the job.
    """
    return sorted(absent) if len(absent) < count or count == 1 else []
