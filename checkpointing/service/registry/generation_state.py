"""The progress of a generation on this node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpointing.format.object_keys import SaveId
from checkpointing.service.snapshots import Generation

RETRY_S, MAX_RETRY_S = 1.0, 60.0  # seconds after a failed save, if nothing newer comes
POLL_S, MAX_POLL_S = 0.02, 2.0  # seconds between looks for another node's announcement


@dataclass
class GenerationState:
    """What the save worker keeps of a generation. The service's lock guards it."""

    generation: Generation
    ranks: frozenset[int]  # ranks on this node
    joined_s: float = field(default_factory=time.monotonic)  # when a rank last joined
    # ranks that have left, and when to stop waiting for them
    gone: dict[int, float] = field(default_factory=dict)
    is_over: bool = False  # a later generation has continued from it
    settled: int = -1  # the newest step that was committed
    committed: Mapping[str, Any] = field(default_factory=dict)  # what was reported of that commit
    epoch: int | None = None  # epoch of the last save; None: not looked up yet
    saving: int | None = None  # the step that is being saved
    awaited: str = ""  # what of other ranks that step waits for
    given_up: SaveId | None = None  # the last save that this node has given up
    term: int = 0  # how often this node has become the leader in place of another one
    last_active_s: float = field(
        default_factory=time.monotonic
    )  # when there was last something to do
    due_s: float = 0.0  # monotonic time before which nothing is tried
    _retry_s: float = RETRY_S
    _poll_s: float = POLL_S

    @property
    def leads(self) -> bool:
        return 0 in self.ranks

    def is_new(self, announced: SaveId) -> bool:
        """Return whether this node takes part in an announced save: what a lost leader has
        announced and committed, but not withdrawn, is neither new nor given up."""
        return announced != self.given_up and announced.step > self.settled

    def try_now(self) -> None:
        """Remove any delay of the next try, because something is new."""
        self.due_s, self._retry_s, self._poll_s = 0.0, RETRY_S, POLL_S
        self.last_active_s = time.monotonic()

    def retry(self) -> None:
        """Delay the next try after a failure, twice as long each time."""
        self.due_s = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def poll(self) -> None:
        """Delay the next look for an announcement, twice as long each time."""
        self.due_s = time.monotonic() + self._poll_s
        self._poll_s = min(2 * self._poll_s, MAX_POLL_S)
