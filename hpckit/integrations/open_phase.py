"""The phase that a callback has reported, for trainers that call it before a validation or a save
and after it, but in no block."""

from __future__ import annotations

from contextlib import AbstractContextManager


class OpenPhase:
    """At most one open block of `client.validating()` or `client.saving()`."""

    def __init__(self) -> None:
        self._open: AbstractContextManager[None] | None = None

    def enter(self, block: AbstractContextManager[None]) -> None:
        """Leaves the block that is open, and enters `block`."""
        self.leave()
        block.__enter__()
        self._open = block

    def leave(self) -> None:
        """Leaves the block that is open, if there is one."""
        block, self._open = self._open, None
        if block is not None:
            block.__exit__(None, None, None)
