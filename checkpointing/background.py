"""One save at a time in a thread of its own, and what becomes of it when the process ends."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from dataclasses import dataclass

from checkpointing.errors import SaveError
from checkpointing.saving import Snapshot

# A process that ends without close() gives its last save this long: a choice between losing it
# and keeping a dying job's node. close() waits for as long as it takes.
EXIT_WAIT_S = 60.0


@dataclass(frozen=True)
class Outcome:
    step: int
    failure: SaveError | None


class BackgroundSave:
    """Runs `save(snapshot)` in a thread. A daemon, so that no peer's silence and no dead store
    can keep a process alive."""

    def __init__(self, snapshot: Snapshot, save: Callable[[Snapshot], SaveError | None]) -> None:
        self.step = snapshot.header.step
        # stands until the thread has ended as it should
        self._failure: SaveError | None = SaveError(f"saving step {self.step}: its thread broke")
        self._save = save
        self._thread = threading.Thread(
            target=self._run, args=(snapshot,), name=f"checkpoint-{self.step}", daemon=True
        )
        self._thread.start()
        atexit.register(self._thread.join, EXIT_WAIT_S)

    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> Outcome:
        """Block until it is committed or has failed."""
        self._thread.join()
        atexit.unregister(self._thread.join)
        return Outcome(self.step, self._failure)

    def _run(self, snapshot: Snapshot) -> None:
        self._failure = self._save(snapshot)
