"""Taking the memory of an arena beside whoever made it."""

from __future__ import annotations

import threading

from checkpointing.errors import StageError
from checkpointing.staging.arena import THREADS, Arena

_STEP = 32 << 20  # bytes between two looks at whether anybody still wants it


class Prefault:
    """Takes what is needed soon when it is made, and the rest, gently, once that was waited for:
    beside the first steps, and not beside the restore before them. Thread-safe."""

    def __init__(self, arena: Arena, first: int) -> None:
        """
        Args:
            first: bytes at the beginning that are needed soon.
        """
        self._arena, self._first = arena, first
        self._changed = threading.Condition()
        self._there = 0  # bytes
        self._was_awaited = False
        self._error: StageError | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
        self._thread.start()

    def wait(self, stop: int) -> None:
        """Return when all bytes before `stop` are there.

        Raises:
            StageError: there is not enough memory.
        """
        with self._changed:
            self._was_awaited = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._there >= stop or self._error is not None)
            if self._there < stop and self._error is not None:
                raise self._error

    def stop(self) -> None:
        """Leave the rest; the arena is not touched any more on return."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._there < self._arena.size and self._is_wanted():
                self._go_on()
        except StageError as error:
            self._reach(self._there, error)
        if self._is_stopped:
            self._reach(self._there, StageError("the memory was given back"))

    def _is_wanted(self) -> bool:
        """Whether to take more; waits until it is known."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._there < self._first or self._was_awaited or self._is_stopped
            )
            return not self._is_stopped

    def _go_on(self) -> None:
        is_first = self._there < self._first
        end = min(self._first if is_first else self._arena.size, self._there + _STEP)
        self._arena.prefault(THREADS if is_first else 1, self._there, end)
        self._reach(end)

    def _reach(self, there: int, error: StageError | None = None) -> None:
        with self._changed:
            self._there, self._error = there, error
            self._changed.notify_all()
