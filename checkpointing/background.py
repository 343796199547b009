"""One save at a time in a thread of its own, and what becomes of it when the process ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import thread as _pools  # noqa: F401 - it has to be ready first, see below
from dataclasses import dataclass

from checkpointing.errors import SaveError
from checkpointing.saving import Snapshot

# A process that ends without close() gives its last save this long: a choice between losing it
# and keeping a dying job's node. close() waits for as long as it takes.
EXIT_WAIT_S = 60.0
_running: list[BackgroundSave] = []


@dataclass(frozen=True)
class Outcome:
    step: int
    failure: SaveError | None


class BackgroundSave:
    """Runs `save(snapshot)` in a thread. A daemon, so that no peer's silence and no dead store
    can keep a process alive."""

    def __init__(self, snapshot: Snapshot, save: Callable[[Snapshot], SaveError | None]) -> None:
        self.step = snapshot.step
        # stands until the thread has ended as it should
        self._failure: SaveError | None = SaveError(f"saving step {self.step}: its thread broke")
        self._save = save
        self._thread = threading.Thread(
            target=self._run, args=(snapshot,), name=f"checkpoint-{self.step}", daemon=True
        )
        self._thread.start()
        _running.append(self)

    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> Outcome:
        """Block until it is committed or has failed."""
        self._thread.join()
        _running.remove(self)
        return Outcome(self.step, self._failure)

    def join(self, timeout_s: float) -> None:
        """Block until it has ended, or for so long."""
        self._thread.join(timeout_s)

    def _run(self, snapshot: Snapshot) -> None:
        self._failure = self._save(snapshot)


def _wait_at_exit() -> None:
    deadline_s = time.monotonic() + EXIT_WAIT_S
    for save in _running:
        save.join(max(0.0, deadline_s - time.monotonic()))


# Not atexit, which comes after thread pools have closed, and a save works with thread pools. These
# functions run in the order opposite to their registration, so this one before that of the pools.
threading._register_atexit(_wait_at_exit)  # type: ignore[attr-defined]
