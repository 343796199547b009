"""The time for which the step of an optimizer waits for a snapshot, which counts as checkpoint
stall and not as optimizer time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from hpckit.trainer.timing.step_phases import StepPhases


class SnapshotWaits:
    """Measures how long the checkpointer delays the steps of optimizers, by hooks around its own
    hooks."""

    def __init__(self, phases: StepPhases) -> None:
        self._phases = phases
        self._hooks: list[_OptimizerHooks] = []

    def watch(self, state: Iterable[object]) -> None:
        """Add hooks to the optimizers in `state`, before the checkpointer adds its own."""
        self._hooks += [
            _OptimizerHooks(each, self._phases) for each in state if isinstance(each, Optimizer)
        ]

    def expect(self) -> None:
        """Note that a save has begun, for which the next step of each optimizer may wait."""
        for hooks in self._hooks:
            hooks.expect()


class _OptimizerHooks:
    """The hooks of one optimizer, which calls them in the order of registration: the first one
    before the hook of the checkpointer, and the second one after it."""

    def __init__(self, optimizer: Optimizer, phases: StepPhases) -> None:
        self._optimizer, self._phases = optimizer, phases
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
            self._phases.begin("checkpoint_stall")

    def _end(self, *_: Any) -> None:
        if self._is_expected:
            self._is_expected = False
            self._phases.end()
