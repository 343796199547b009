"""Validation of a run's model on samples that it is not trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data import Batch
from hpckit.config.last_step import last_step
from hpckit.config.rules.validation import PREFIX
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventTail
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.parallel.collectives import meeting_device

Measure = Callable[[Batch], Mapping[str, Tensor]]
"""A function from a batch to values of each sample: {name: (samples,)}."""
Validate = Callable[[], Mapping[str, float | Tensor]]
"""A function that returns metrics, under the same names on every rank, to be averaged over ranks.
"""


class ValidationInterruptedError(Exception):
    """All ranks were asked to leave during a validation, whose results so far do not count."""


class ValidationSchedule:
    """When a run validates, and the results of the newest validation."""

    def __init__(self, spec: RunSpec) -> None:
        self._every, self._last = spec.train.validate_every, last_step(spec)
        self._best = spec.checkpoint.keep.best
        self._step, self._found = 0, dict[str, float]()

    def is_due(self, step: int) -> bool:
        """Whether the run is to be validated after `step`, and was not yet."""
        is_one = self._every is not None and (step % self._every == 0 or step == self._last)
        return is_one and 0 < step != self._step

    def done(self, step: int, found: Mapping[str, float]) -> Mapping[str, float]:
        """Record that the run was validated after `step`, with the metrics by their final names."""
        self._step, self._found = step, {f"{PREFIX}{name}": each for name, each in found.items()}
        return self._found

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return the metrics of the validation after `step`; empty if there was none."""
        return self._found if step == self._step else {}

    def judges(self, step: int) -> bool:
        """Whether validation after `step` has the metric by which the best checkpoint is chosen."""
        return self._best in self.metrics(step)


@contextmanager
def evaluating(tracked: Iterable[object]) -> Iterator[None]:
    """Put modules in eval mode within this block, without recording for gradients."""
    whole = [each for each in tracked if isinstance(each, nn.Module)]
    were = {module: module.training for each in whole for module in each.modules()}
    try:
        for each in whole:
            each.eval()
        with torch.no_grad():
            yield
    finally:
        for module, was_training in were.items():
            module.training = was_training


def sample_means(
    batches: Iterable[Batch], measure: Measure, device: torch.device
) -> dict[str, float]:
    """Return means over all samples of all ranks, without those that only fill a batch. Collective.

    Raises:
        TrainingError: `measure` gives other than a number a sample, or `batches` hold none.
    """
    sums: dict[str, Tensor] = {}
    count = torch.zeros((), dtype=torch.float64, device=device)
    for batch in batches:
        mask = torch.from_numpy(batch.mask).to(device)
        count += mask.sum()
        for name, values in measure(batch).items():
            if values.shape != mask.shape:
                raise TrainingError(
                    f"validation: {name} has the shape {tuple(values.shape)}; give one number for "
                    f"each of the {len(mask)} samples of a batch"
                )
            kept = torch.where(mask, values.detach().double(), 0.0).sum()
            sums[name] = sums[name] + kept if name in sums else kept
    names = sorted(sums)
    both = torch.stack([*(sums[name] for name in names), count]).to(meeting_device())
    dist.all_reduce(both)
    *totals, samples = both.tolist()
    if not samples:
        raise TrainingError("validation: there are no samples")
    return {name: total / samples for name, total in zip(names, totals, strict=True)}


def over_ranks(values: Mapping[str, float | Tensor]) -> dict[str, float]:
    """Return means over ranks. Collective.

    Raises:
        TrainingError: on every rank, if they do not all give the same names.
    """
    found: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(found, {name: float(value) for name, value in values.items()})
    if any(each.keys() != found[0].keys() for each in found):
        names = " and ".join(sorted({str(sorted(each)) for each in found}))
        raise TrainingError(f"validation: ranks give different metrics, {names}")
    return {name: fmean(each[name] for each in found) for name in sorted(found[0])}


def was_validated(step: int, events: Path) -> bool:
    """Whether the run's events, as rank 0 reads them, say that it was validated. Collective."""
    is_found = dist.get_rank() == 0 and any(
        event.kind == "validated" and event["step"] == step for event in EventTail(events).read()
    )
    flag = torch.tensor(float(is_found), device=meeting_device())
    dist.broadcast(flag, src=0)
    return bool(flag)
