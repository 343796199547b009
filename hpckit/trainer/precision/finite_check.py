"""Detection of a loss or parameters that are not finite, before any of them is saved. The first
time, it may be a fault of the machine, and the step is computed again; at the same step again, it
is the training that diverges."""

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
from hpckit.events.since_last_start import since_start
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.parallel.collectives import reduced
from hpckit.trainer.parallel.local_tensor import local

log = logging.getLogger(__name__)

NAMES = ("loss", "grad_norm")
"""Metrics that are checked if a training function logs them."""
_KIND = "not_finite"


class NotFiniteError(RuntimeError):
    """The loss, the norm of the gradients, or a parameter is NaN or infinite; another attempt may
    succeed."""


class FiniteCheck:
    """Ends an attempt that has diverged, on all ranks alike."""

    def __init__(self, cfg: RunSpec, told: Path, events: EventLog) -> None:
        """Args:
        told: path of the events of the run so far.
        events: log for this rank's own events.
        """
        self._is_on = cfg.train.require_finite
        # In fp16, steps that overflow are skipped and counted by `LossScale`.
        self._is_on_loss = self._is_on and cfg.precision.compute != "fp16"
        self._every = cfg.train.log_every
        self._events_path, self._events = told, events

    def require(self, step: int, means: Mapping[str, float]) -> None:
        """Check the means over ranks of `step`, which are the same on all ranks.

        Raises:
            NotFiniteError: one of `NAMES` is not.
            TrainingError: it was not when the step was computed before, either.
        """
        found = {name: means[name] for name in NAMES if not math.isfinite(means.get(name, 0.0))}
        if self._is_on_loss and found:
            self._fail(step, " and ".join(f"{name} is {value}" for name, value in found.items()))

    def require_parameters(self, step: int, state: Mapping[str, Any]) -> None:
        """Check the parameters of the modules in what is about to be saved, because the loss shows
        the effect of a step only in the next one. Collective.

        Raises: as `require`.
        """
        if not self._is_on:
            return
        found = [name for held in state.values() for name in not_finite(held)]
        if found:
            log.error("step %d: not finite on this rank: %s", step, ", ".join(found[:10]))
        if reduced([float(bool(found))], dist.ReduceOp.MAX)[0]:
            self._fail(step, "parameters are not finite after it")

    def problem_of(self, state: Mapping[str, Any]) -> str | None:
        """Return why this rank cannot continue from `state`: a machine may have failed while it was
        copied."""
        found = (
            [name for held in state.values() for name in not_finite(held)] if self._is_on else []
        )
        return f"not finite: {', '.join(found[:10])}" if found else None

    def _fail(self, step: int, finding: str) -> None:
        """End the attempt with the matching error. Collective."""
        what = f"step {step}: {finding}"
        is_again = self._was_seen(step)
        if dist.get_rank() == 0:
            self._events.emit(_KIND, step=step, what=what)
        if is_again:
            raise TrainingError(
                f"{what}, as when it was computed before: no machine's fault. Nothing of it is "
                "saved. A lower optim.lr or optim.grad_clip, another precision, or a look at its "
                "samples (hpckit data where) may help; train.require_finite=false goes on anyway"
            )
        raise NotFiniteError(f"{what}; nothing of it is saved, and it is computed once more")

    def _was_seen(self, step: int) -> bool:
        """Whether it was seen before, as rank 0 reads it, since other ranks may read older events.
        Collective."""
        is_known = dist.get_rank() == 0 and was_seen(
            read_events(self._events_path), step, self._every
        )
        return bool(reduced([float(is_known)], dist.ReduceOp.MAX)[0])


def not_finite(held: Any) -> list[str]:
    """Return the names of a module's trained parameters of which this rank's part is not finite;
    none for other objects. It takes one pass over all parameters, and one for each of them only if
    that finds something."""
    if not isinstance(held, nn.Module):
        return []
    parts = {
        name: local(parameter.detach())
        for name, parameter in held.named_parameters()
        if parameter.requires_grad
    }
    parts = {name: part for name, part in parts.items() if part.numel()}
    if _is_finite(list(parts.values())):
        return []
    return [name for name, part in parts.items() if not _is_finite([part])]


def _is_finite(parts: list[Tensor]) -> bool:
    return math.isfinite(get_total_norm(parts, math.inf).item())


def was_seen(events: Iterable[Event], step: int, every: int) -> bool:
    """Whether the run, since its last start by a person, was not finite at `step` before, as far as
    checks at intervals of several steps can tell."""
    known = (event["step"] for event in since_start(events) if event.kind == _KIND)
    return any(abs(one - step) < every for one in known)
