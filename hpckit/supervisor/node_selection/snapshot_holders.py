"""Tracks whether nodes outside a generation may hold parts of the newest snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class SnapshotHolders:
    """The nodes of a job whose memory may hold snapshots of the run."""

    _nodes: frozenset[int] | None = None  # of the last generation that trained; None: none so far
    _is_one_lost: bool = False

    def record_training(self, nodes: Iterable[int]) -> None:
        """Records that a generation on these nodes has started to train."""
        self._nodes, self._is_one_lost = frozenset(nodes), False

    def record_loss(self, nodes: Iterable[int]) -> None:
        """Records that the memory of these nodes is lost."""
        if self._nodes is not None and not self._nodes.isdisjoint(nodes):
            self._is_one_lost = True

    def are_among(self, nodes: Iterable[int]) -> bool:
        """Returns whether workers on these nodes have access to every snapshot that can still be
        used: no other node of the job holds a part of one, or a node that held a part is lost,
        without which the parts of the other nodes are incomplete."""
        return self._nodes is not None and (self._is_one_lost or self._nodes <= set(nodes))
