"""Optimizers' steps that wait for a snapshot: what they wait is the save's time, not theirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hpckit.trainer.timing.step_phases import StepPhases


class SnapshotWaits:
    """Brackets what a checkpointer does in front of the next step of an optimizer."""

    def __init__(self, parts: StepPhases) -> None:
        self._parts = parts
        self._waits: list[_Wait] = []

    def watch(self, state: Iterable[object]) -> None:
        """The optimizers among these, which the checkpointer does not know yet."""
        self._waits += [_Wait(one, self._parts) for one in state if isinstance(one, Optimizer)]

    def expect(self) -> None:
        """A save has begun."""
        for wait in self._waits:
            wait.expect()


class _Wait:
    """An optimizer calls its hooks in the order in which they came: the first one of this comes
    before the checkpointer's, and the second one after."""

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
