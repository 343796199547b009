"""The decision before each optimizer step whether the optimizer makes it (`heal=skip`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from hpckit.events.earlier_events import EarlierEvents
from hpckit.events.schema import UpdateSkipped
from hpckit.events.skipped_updates import skipped_updates
from hpckit.trainer.batches.step_source import StepSource
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.parallel.collectives import barrier, rows_of_rank_0
from hpckit.trainer.parallel.local_tensor import local
from hpckit.trainer.rank_setup import RankContext
from hpckit.trainer.spikes.spike_detection import SCALE, SpikeDetector

log = logging.getLogger(__name__)

NORMALISATIONS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
"""The layers of torch that have running moments."""


class UpdateSkipper:
    """Decides for each step of one attempt whether it updates the parameters.

    All ranks decide alike, as they pass on means over all ranks.
    """

    def __init__(
        self,
        context: RankContext,
        source: StepSource,
        detector: SpikeDetector,
        earlier: EarlierEvents,
    ) -> None:
        """Take which updates earlier attempts have left out. Collective."""
        self._context, self._source, self._detector = context, source, detector
        rows = rows_of_rank_0([[step] for step in skipped_updates(earlier.by_time)], 1)
        self._skipped = [step for (step,) in rows]
        self._moments = MomentCopies(())
        self._step = 0
        self._begun: int | None = None
        self._is_update: bool | None = None
        """The decision about the present step; None: it was not asked for."""

    def begin(self, step: int, modules: Iterable[nn.Module]) -> None:
        """Begin an attempt that continues from `step` with these modules."""
        self._skipped = [one for one in self._skipped if one <= step]
        self._moments = MomentCopies(modules)

    def begin_step(self, step: int, begun: int | None) -> None:
        """Begin step `step` (from 1), with the loader at the position `begun`, if it has any."""
        self._step, self._begun, self._is_update = step, begun, None
        self._moments.take()

    def decide(self, means: Mapping[str, float]) -> bool:
        """Return whether the present step is to update the parameters.

        Args:
            means: metrics of the step, as means over ranks.

        Raises:
            TrainingError: it is not, after too many others; or this was asked for already.
        """
        if self._is_update is not None:
            raise TrainingError(
                f"run.should_update was called twice in step {self._step}: call it once in each "
                "step, before all optimizers"
            )
        # a small loss scale is no fault of this update, and it stays small in the next steps
        outliers = [one for one in self._detector.update(means) if one.name != SCALE]
        self._is_update = not outliers
        if outliers:
            self._skip(" and ".join(map(str, outliers)))
        return self._is_update

    def end_step(self) -> bool:
        """End the present step, and return whether its update was left out.

        Raises:
            TrainingError: the training function has not asked.
        """
        if self._is_update is None:
            raise TrainingError(
                f"heal=skip: the training function did not call run.should_update in step "
                f"{self._step}. Write `if run.should_update(loss=loss, grad_norm=norm): "
                "optimizer.step()`, on all ranks, or set heal=off"
            )
        return not self._is_update

    def _skip(self, what: str) -> None:
        spec, step = self._context.cfg.heal, self._step
        is_last = are_too_many(self._skipped, step, spec.most, spec.within)
        self._context.emit_once(
            UpdateSkipped(
                step=step,
                what=what,
                is_skipped=not is_last,
                first_position=self._begun,
                end_position=None if self._begun is None else self._source.position,
            )
        )
        if is_last:
            barrier()  # agents end the other ranks once one has failed, and this event has to exist
            raise TrainingError(
                f"step {step}: {what}; {spec.most} updates were left out within {spec.within} "
                "steps already (heal.most, heal.within), so the samples are hardly the cause. A "
                "lower optim.lr, more warmup or another precision may help"
            )
        self._skipped.append(step)
        self._moments.restore()
        log.warning("step %d: %s; the update is left out", step, what)


class MomentCopies:
    """Copies of the running moments of torch's normalisations, which a forward pass changes before
    anything is known of its step."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        layers = [
            layer for one in modules for layer in one.modules() if isinstance(layer, NORMALISATIONS)
        ]
        self._live = [local(buffer) for layer in layers for buffer in layer.buffers(recurse=False)]
        self._copies = [torch.empty_like(buffer) for buffer in self._live]

    @torch.no_grad()
    def take(self) -> None:
        """Copy the present values."""
        for copy, buffer in zip(self._copies, self._live, strict=True):
            copy.copy_(buffer)

    @torch.no_grad()
    def restore(self) -> None:
        """Set the moments to the values that were copied."""
        for copy, buffer in zip(self._copies, self._live, strict=True):
            buffer.copy_(copy)


def are_too_many(skipped: Iterable[int], step: int, most: int, within: int) -> bool:
    """Return whether `most` updates of the `within` steps before `step` were left out already."""
    return sum(step - within < one < step for one in skipped) >= most
