"""The validation of a run's model on samples that it is not trained on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data import Batch
from hpckit.config.last_step import last_step
from hpckit.config.rules.validation_and_evaluation import PREFIX
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventTail
from hpckit.events.schema import Validated
from hpckit.ipc.heartbeat_table import WorkerPhase, WorkerRequest
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.metrics.step_metrics import StepMetrics
from hpckit.trainer.parallel.collectives import collective_device
from hpckit.trainer.random_seeds import mix, seed_all
from hpckit.trainer.rank_agreement import RankAgreement
from hpckit.trainer.rank_setup import RankContext
from hpckit.trainer.timing.step_phases import Timed

log = logging.getLogger(__name__)

Measure = Callable[[Any], Mapping[str, Tensor]]
"""A function from a batch, such as a `data.Batch`, to values of each sample: {name: (samples,)}."""
Validate = Callable[[], Mapping[str, float | Tensor]]
"""A function that returns metrics, under the same names on every rank, to be averaged over ranks.
"""


class ValidationInterruptedError(Exception):
    """All ranks were asked to leave during a validation, whose results so far do not count."""


class ValidationSchedule:
    """Decides after which steps a run validates, and has the results of the newest validation."""

    def __init__(self, spec: RunSpec) -> None:
        self._every, self._last = spec.train.validate_every, last_step(spec)
        self._best_metric = spec.checkpoint.keep.best
        self._step, self._results = 0, dict[str, float]()

    def is_due(self, step: int) -> bool:
        """Whether the run is to be validated after `step`, and was not yet."""
        is_chosen = self._every is not None and (step % self._every == 0 or step == self._last)
        return is_chosen and 0 < step != self._step

    def record(self, step: int, results: Mapping[str, float]) -> Mapping[str, float]:
        """Record the results of the validation after `step`, and return them under their final
        names."""
        self._step = step
        self._results = {f"{PREFIX}{name}": value for name, value in results.items()}
        return self._results

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return the results of the validation after `step`; empty if there was none."""
        return self._results if step == self._step else {}

    def has_best_metric(self, step: int) -> bool:
        """Whether the validation after `step` has the metric that chooses the best checkpoint."""
        return self._best_metric in self.metrics(step)


class ValidationRunner:
    """Runs the validations of a run, as its schedule says."""

    def __init__(
        self,
        context: RankContext,
        agreement: RankAgreement,
        schedule: ValidationSchedule,
        timed: Timed,
    ) -> None:
        self._context, self._agreement = context, agreement
        self._schedule, self._timed = schedule, timed

    def is_due(self, step: int) -> bool:
        """Whether the run is to be validated after `step`, and was not yet in this attempt."""
        return self._schedule.is_due(step)

    def is_overdue(self, step: int) -> bool:
        """Whether the previous attempt was to validate after `step`, from which this one resumes,
        and had no time for it. Collective if a validation is due."""
        return self._schedule.is_due(step) and not was_validated(
            step, self._context.env.at.run.events
        )

    def run(
        self, step: int, validate: Validate, tracked: Iterable[object], metrics: StepMetrics
    ) -> None:
        """Validate after `step` and record the results. Collective.

        If all ranks are asked to leave meanwhile, nothing is recorded, and the validation is
        repeated when the run resumes.

        Args:
            tracked: objects of the run's state, of which modules are in eval mode meanwhile.
        """
        context, begun_s = self._context, time.monotonic()
        context.heartbeats.report(WorkerPhase.VALIDATING, step)
        seed_all(mix(context.cfg.train.seed, "validation", context.coordinate.data))
        try:
            with self._timed("validation"), evaluating(tracked):
                results = over_ranks(validate())
        except ValidationInterruptedError:
            log.info("the validation after step %d is repeated when the run resumes", step)
            return
        seconds = time.monotonic() - begun_s
        metrics.record_validation(step, self._schedule.record(step, results), seconds)
        context.heartbeats.report(WorkerPhase.TRAINING, step)

    def evaluate(self, step: int, batches: Iterable[Any], measure: Measure) -> dict[str, float]:
        """Return the means over the samples of all ranks' `batches`, as `sample_means`, during the
        validation after `step`. Collective.

        Raises:
            ValidationInterruptedError: all ranks were asked to leave.
        """
        return sample_means(self._interruptible(step, batches), measure, self._context.device)

    def _interruptible(self, step: int, batches: Iterable[Any]) -> Iterator[Any]:
        heartbeats = self._context.heartbeats
        for batch in batches:
            if self._agreement.exchange(0, heartbeats.request()) is not WorkerRequest.NONE:
                raise ValidationInterruptedError
            heartbeats.report(WorkerPhase.VALIDATING, step)
            yield batch


@contextmanager
def evaluating(tracked: Iterable[object]) -> Iterator[None]:
    """Put the modules among the `tracked` objects into eval mode within this block, in which no
    gradients are computed."""
    roots = [each for each in tracked if isinstance(each, nn.Module)]
    was_training = {module: module.training for root in roots for module in root.modules()}
    try:
        for root in roots:
            root.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in was_training.items():
            module.training = mode


def sample_means(
    batches: Iterable[Any], measure: Measure, device: torch.device
) -> dict[str, float]:
    """Return means over the samples of all ranks, except those that only pad a batch. Collective.

    Raises:
        TrainingError: `measure` does not return one number for each sample, or there are no
            samples.
    """
    sums: dict[str, Tensor] = {}
    count = torch.zeros((), dtype=torch.float64, device=device)
    for batch in batches:
        measured = measure(batch)
        mask = _mask_of(batch, measured).to(device)
        count += mask.sum()
        for name, values in measured.items():
            if values.shape != mask.shape:
                raise TrainingError(
                    f"validation: {name} has the shape {tuple(values.shape)}; give one number for "
                    f"each of the {len(mask)} samples of a batch"
                )
            kept = torch.where(mask, values.detach().double(), 0.0).sum()
            sums[name] = sums[name] + kept if name in sums else kept
    names = sorted(sums)
    packed = torch.stack([*(sums[name] for name in names), count]).to(collective_device())
    dist.all_reduce(packed)
    *totals, samples = packed.tolist()
    if not samples:
        raise TrainingError("validation: there are no samples")
    return {name: total / samples for name, total in zip(names, totals, strict=True)}


def _mask_of(batch: Any, measured: Mapping[str, Tensor]) -> Tensor:
    """Return which samples of a batch count; all if it is not from a `data.Loader`."""
    if isinstance(batch, Batch):
        return torch.from_numpy(batch.mask)
    counts = (one.shape[0] for one in measured.values() if one.dim())
    return torch.ones(max(counts, default=0), dtype=torch.bool)


def over_ranks(values: Mapping[str, float | Tensor]) -> dict[str, float]:
    """Return the means of `values` over ranks. Collective.

    Raises:
        TrainingError: on every rank, if not all ranks have the same names.
    """
    found: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, {name: float(value) for name, value in values.items()})
    if any(each.keys() != found[0].keys() for each in found):
        names = " and ".join(sorted({str(sorted(each)) for each in found}))
        raise TrainingError(f"validation: ranks give different metrics, {names}")
    return {name: fmean(each[name] for each in found) for name in sorted(found[0])}


def was_validated(step: int, events: Path) -> bool:
    """Whether the run was validated after `step`, by the events as rank 0 reads them.
    Collective."""
    is_found = dist.get_rank() == 0 and any(
        isinstance(event, Validated) and event.step == step for event in EventTail(events).read()
    )
    flag = torch.tensor(float(is_found), device=collective_device())
    dist.broadcast(flag, src=0)
    return bool(flag)
