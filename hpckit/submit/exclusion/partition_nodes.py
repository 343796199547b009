"""The nodes of a partition, as `sinfo` lists them."""

from __future__ import annotations

from hpckit.slurm.node_exclusion import PartitionNodes
from hpckit.slurm.slurm_query import query

_TIMEOUT_S = 10.0
_UNUSABLE = ("drain", "fail", "error", "maint")  # until somebody returns the node to service
_AWAY = ("down", "unknown")


def partition_nodes(partition: str | None) -> PartitionNodes:
    """Returns the nodes of a partition, or of several that are separated by commas.

    Args:
        partition: None: all nodes.

    Raises:
        OSError, subprocess.SubprocessError: Slurm does not answer.
    """
    where = [f"--partition={partition}"] if partition else []
    command = ["sinfo", "--noheader", "--Node", "--format=%N %T", *where]
    return parse_nodes(query(command, _TIMEOUT_S))


def parse_nodes(text: str) -> PartitionNodes:
    """Parses lines of a node name and a state each."""
    pairs = [line.split()[:2] for line in text.splitlines() if line.strip()]
    there = [
        (name, state.lower()) for name, state in pairs if not state.lower().startswith(_UNUSABLE)
    ]
    away = frozenset(name for name, state in there if state.startswith(_AWAY))
    return PartitionNodes(frozenset(name for name, _ in there) - away, away)
