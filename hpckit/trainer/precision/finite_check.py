"""The detection of a loss or parameters that are not finite, before any of them is saved.

The first time, a machine may be at fault, and the step is computed again. If it happens at the same
step again, the training itself diverges, and the run ends.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from hpckit.config.spec import RunSpec
from hpckit.events.event_log import Event, EventLog, read_events
from hpckit.events.schema import NotFinite
from hpckit.events.since_last_start import since_start
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.parallel.collectives import reduced
from hpckit.trainer.parallel.local_tensor import local

log = logging.getLogger(__name__)

NAMES = ("loss", "grad_norm")
"""Names of the metrics that are checked if a training function logs them."""


class NotFiniteError(RuntimeError):
    """The loss, the norm of the gradients, or a parameter is NaN or infinite; another attempt may
    succeed."""


class FiniteCheck:
    """Ends an attempt whose loss or parameters are not finite, on all ranks at the same step."""

    def __init__(self, cfg: RunSpec, history: Path, events: EventLog) -> None:
        """Args:
        history: path of the events of the run so far.
        events: log for the events of this rank.
        """
        self._is_enabled = cfg.train.require_finite
        # In fp16, `LossScale` skips and counts steps that overflow.
        self._checks_loss = self._is_enabled and cfg.precision.compute != "fp16"
        self._every = cfg.train.log_every
        self._history, self._events = history, events
        self._excused = -1

    def excuse(self, step: int) -> None:
        """Let the loss of `step` be as it is, since the parameters were not updated by it."""
        self._excused = step

    def require(self, step: int, means: Mapping[str, float]) -> None:
        """Check the means over ranks of `step`, which are the same on all ranks.

        Raises:
            NotFiniteError: one of the metrics `NAMES` is not finite.
            TrainingError: it was not finite when the step was computed before, either.
        """
        found = {name: means[name] for name in NAMES if not math.isfinite(means.get(name, 0.0))}
        if self._checks_loss and found and step != self._excused:
            self._fail(step, " and ".join(f"{name} is {value}" for name, value in found.items()))

    def require_parameters(self, step: int, state: Mapping[str, Any]) -> None:
        """Check the parameters of the modules in a state that is about to be saved, because only
        the loss of the next step would show what this step did to them. Collective.

        Raises:
            NotFiniteError, TrainingError: as `require`.
        """
        if not self._is_enabled:
            return
        found = [name for each in state.values() for name in not_finite(each)]
        if found:
            log.error("step %d: not finite on this rank: %s", step, ", ".join(found[:10]))
        if reduced([float(bool(found))], dist.ReduceOp.MAX)[0]:
            self._fail(step, "parameters are not finite after it")

    def problem_of(self, state: Mapping[str, Any]) -> str | None:
        """Return why this rank cannot continue from the restored `state`, or None if it can. A
        machine may have failed while the state was copied."""
        found = (
            [name for each in state.values() for name in not_finite(each)]
            if self._is_enabled
            else []
        )
        return f"not finite: {', '.join(found[:10])}" if found else None

    def _fail(self, step: int, finding: str) -> None:
        """End the attempt with an error that depends on whether the step has failed before.
        Collective."""
        what = f"step {step}: {finding}"
        is_repeated = self._was_seen(step)
        if dist.get_rank() == 0:
            self._events.emit(NotFinite(step=step, what=what))
        if is_repeated:
            raise TrainingError(
                f"{what}, as when it was computed before, so no machine is at fault. The "
                "step is not saved. A lower optim.lr or optim.grad_clip, another precision, or a "
                "look at its samples (hpckit data where) may help; train.require_finite=false "
                "continues anyway"
            )
        raise NotFiniteError(f"{what}; the step is not saved, and is computed once more")

    def _was_seen(self, step: int) -> bool:
        """Whether the run was not finite at `step` before, by the events as rank 0 reads them,
        since other ranks may read older ones. Collective."""
        is_known = dist.get_rank() == 0 and was_seen(read_events(self._history), step, self._every)
        return bool(reduced([float(is_known)], dist.ReduceOp.MAX)[0])


def not_finite(tracked: Any) -> list[str]:
    """Return the names of the trained parameters of a module of which this rank's part is not
    finite; none for other objects.

    All parameters are checked together, and each of them only if that finds something.
    """
    if not isinstance(tracked, nn.Module):
        return []
    parts = {
        name: local(parameter.detach())
        for name, parameter in tracked.named_parameters()
        if parameter.requires_grad
    }
    parts = {name: part for name, part in parts.items() if part.numel()}
    if _is_finite(list(parts.values())):
        return []
    return [name for name, part in parts.items() if not _is_finite([part])]


def _is_finite(parts: list[Tensor]) -> bool:
    return math.isfinite(get_total_norm(parts, math.inf).item())


def was_seen(events: Iterable[Event], step: int, every: int) -> bool:
    """Whether the run was not finite at `step` before, since a person started it last, as far as
    checks every `every` steps can tell."""
    known = (event.step for event in since_start(events) if isinstance(event, NotFinite))
    return any(abs(one - step) < every for one in known)
