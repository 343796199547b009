"""How far a generation has come on this node."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from checkpointing.service.snapshots import Generation

RETRY_S, MAX_RETRY_S = 1.0, 60.0  # after a failed save, if nothing newer comes
POLL_S, MAX_POLL_S = 0.02, 2.0  # between looks for another node's announcement
REJOIN_S = 30.0  # in which each rank of this node has to take its seat


@dataclass
class Course:
    """What the worker keeps in mind of a generation. The service's lock guards it."""

    generation: Generation
    ranks: frozenset[int]  # on this node
    joined_s: float = field(default_factory=time.monotonic)
    settled: int = -1  # the newest step that was committed
    epoch: int = 0  # of the last save
    due_s: float = 0.0  # monotonic; not to be tried before
    _retry_s: float = RETRY_S
    _poll_s: float = POLL_S

    @property
    def leads(self) -> bool:
        return 0 in self.ranks

    def at_once(self) -> None:
        """There is something new."""
        self.due_s, self._retry_s, self._poll_s = 0.0, RETRY_S, POLL_S

    def retry(self) -> None:
        """After a failure."""
        self.due_s = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def poll(self) -> None:
        """Nothing is announced yet."""
        self.due_s = time.monotonic() + self._poll_s
        self._poll_s = min(2 * self._poll_s, MAX_POLL_S)
