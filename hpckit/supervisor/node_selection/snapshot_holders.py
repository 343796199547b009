"""Where parts of a save may lie that the workers of a generation do not see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class SnapshotHolders:
    """The nodes of a job in whose memory its trainers may have left snapshots."""

    _nodes: frozenset[int] | None = None  # of the last generation that trained; None: not this job
    _is_one_lost: bool = False

    def trained(self, nodes: Iterable[int]) -> None:
        """A generation of these nodes has gone on from what there was before it."""
        self._nodes, self._is_one_lost = frozenset(nodes), False

    def lost(self, nodes: Iterable[int]) -> None:
        """What was in the memory of these is gone."""
        if self._nodes is not None and not self._nodes.isdisjoint(nodes):
            self._is_one_lost = True

    def are_here(self, nodes: Iterable[int]) -> bool:
        """Whether workers on these nodes see all that there is: no other node of the job holds a
        part, or one that did is lost, without which those of the others are not whole."""
        return self._nodes is not None and (self._is_one_lost or self._nodes <= set(nodes))
