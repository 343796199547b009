"""Allocates the pages of an arena in a background thread."""

from __future__ import annotations

import logging
import threading

from checkpointing.errors import StageError
from checkpointing.staging.arena import THREADS, Arena

logger = logging.getLogger("checkpointing")

_STEP = 32 << 20  # bytes between two checks of whether and how to continue


class Prefault:
    """Allocates pages once `begin` or `wait` is called, and not during the restore before them:
    those that are waited for as fast as possible, all others slowly. Thread-safe."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._changed = threading.Condition()
        self._allocated = 0  # bytes allocated so far
        self._awaited = 0  # bytes at the beginning that are waited for
        self._was_begun = False
        self._error: StageError | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Allocate everything from now on, slowly; a second call does nothing."""
        with self._changed:
            self._was_begun = True
            self._changed.notify_all()

    def wait(self, stop: int) -> None:
        """Block until all bytes before `stop` are allocated, and allocate the rest from now on.

        Raises:
            StageError: there is not enough memory.
        """
        with self._changed:
            self._was_begun = True
            self._awaited = max(self._awaited, stop)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._allocated >= stop or self._error is not None)
            if self._allocated < stop and self._error is not None:
                raise self._error

    def stop(self) -> None:
        """Stop allocating; the arena is not touched any more on return."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._allocated < self._arena.size and self._is_wanted():
                self._go_on()
        except StageError as error:
            # said now, since the first save, which raises it, may come much later
            logger.error("the memory of saves cannot be allocated, so they will fail: %s", error)
            self._reach(self._allocated, error)
        if self._is_stopped:
            self._reach(self._allocated, StageError("the memory was released"))

    def _is_wanted(self) -> bool:
        """Whether to allocate more; blocks until that is known."""
        with self._changed:
            self._changed.wait_for(lambda: self._was_begun or self._is_stopped)
            return not self._is_stopped

    def _go_on(self) -> None:
        is_awaited = self._allocated < self._awaited
        end = min(self._awaited if is_awaited else self._arena.size, self._allocated + _STEP)
        self._arena.prefault(THREADS if is_awaited else 1, self._allocated, end)
        self._reach(end)

    def _reach(self, there: int, error: StageError | None = None) -> None:
        with self._changed:
            self._allocated, self._error = there, error
            self._changed.notify_all()
