"""Attribution of an optimizer's wait for a snapshot: that time counts as checkpoint stall, not as
optimizer time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hpckit.trainer.timing.step_phases import StepPhases


class SnapshotWaits:
    """Times what a checkpointer does before the next step of an optimizer, by hooks around its
    own."""

    def __init__(self, parts: StepPhases) -> None:
        self._parts = parts
        self._waits: list[_Wait] = []

    def watch(self, state: Iterable[object]) -> None:
        """Add hooks to those optimizers that the checkpointer does not know yet."""
        self._waits += [_Wait(one, self._parts) for one in state if isinstance(one, Optimizer)]

    def expect(self) -> None:
        """Note that a save has begun."""
        for wait in self._waits:
            wait.expect()


class _Wait:
    """The hooks of one optimizer, which calls hooks in the order of registration: the first one of
    this comes before the checkpointer's, and the second one after it."""

    def __init__(self, optimizer: Optimizer, parts: StepPhases) -> None:
        self._optimizer, self._parts = optimizer, parts
        self._is_expected = False
        self._after: RemovableHandle | None = None
        optimizer.register_step_pre_hook(self._begin)

    def expect(self) -> None:
        if self._after is not None:
            self._after.remove()
        self._after = self._optimizer.register_step_pre_hook(self._end)
        self._is_expected = True

    def _begin(self, *_: Any) -> None:
        if self._is_expected:
            self._parts.begin("checkpoint_stall")

    def _end(self, *_: Any) -> None:
        if self._is_expected:
            self._is_expected = False
            self._parts.end()
