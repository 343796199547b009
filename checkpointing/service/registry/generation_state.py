"""How far a generation has come on this node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpointing.format.object_keys import SaveId
from checkpointing.service.snapshots import Generation

RETRY_S, MAX_RETRY_S = 1.0, 60.0  # after a failed save, if nothing newer comes
POLL_S, MAX_POLL_S = 0.02, 2.0  # between looks for another node's announcement


@dataclass
class GenerationState:
    """What the worker keeps in mind of a generation. The service's lock guards it."""

    generation: Generation
    ranks: frozenset[int]  # on this node
    joined_s: float = field(default_factory=time.monotonic)  # when a rank last took its seat
    gone: dict[int, float] = field(default_factory=dict)  # ranks, and when to wait no more
    is_over: bool = False  # a later generation has gone on from it
    settled: int = -1  # the newest step that was committed
    committed: Mapping[str, Any] = field(default_factory=dict)  # what was told of it
    epoch: int | None = None  # of the last save; None: not looked for yet
    saving: int | None = None  # the step that is being saved
    given_up: SaveId | None = None  # the last one, if this node has
    term: int = 0  # how often this node has come to lead in place of another one
    heard_s: float = field(default_factory=time.monotonic)  # when there was last something to do
    due_s: float = 0.0  # monotonic; not to be tried before
    _retry_s: float = RETRY_S
    _poll_s: float = POLL_S

    @property
    def leads(self) -> bool:
        return 0 in self.ranks

    def is_new(self, announced: SaveId) -> bool:
        """Whether this node has to do with it: what a leader that is gone has announced and
        committed, but not taken back, is neither new nor given up."""
        return announced != self.given_up and announced.step > self.settled

    def at_once(self) -> None:
        """There is something new."""
        self.due_s, self._retry_s, self._poll_s = 0.0, RETRY_S, POLL_S
        self.heard_s = time.monotonic()

    def retry(self) -> None:
        """After a failure."""
        self.due_s = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def poll(self) -> None:
        """Nothing is announced yet."""
        self.due_s = time.monotonic() + self._poll_s
        self._poll_s = min(2 * self._poll_s, MAX_POLL_S)
