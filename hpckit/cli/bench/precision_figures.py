"""Figures of the same training in several precisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from hpckit.events.schema import Event, StepLogged, Validated
from hpckit.text.quantities import count, size
from hpckit.trainer.measurement.batch_size_figures import BatchSizeReport, best_batch


@dataclass(frozen=True)
class EpochFigures:
    """An epoch of a run."""

    seconds: float
    """Seconds of its steps, without validation."""
    samples_per_s: float
    loss: float | None
    """Mean loss of its steps."""
    accuracy: float | None
    """Accuracy on validation data at its end, or else the mean of its steps; None: of text."""
    validation_loss: float | None


@dataclass(frozen=True)
class PrecisionRun:
    """A run in one precision that reached its end."""

    precision: str
    epochs: tuple[EpochFigures, ...]
    step_s: float
    """Median seconds of a step after the first epoch; with a single epoch, of it."""
    samples_per_s: float
    peak_bytes: int | None
    """Peak of torch's tensors on a GPU, or of the resident memory of the process."""
    is_gpu: bool
    skipped_steps: int
    """Steps that were skipped because gradients overflowed."""
    losses: tuple[tuple[int, float], ...]
    """The loss by step."""

    @property
    def first_epoch_factor(self) -> float | None:
        """How many times as long as the later epochs the first one took; None: there is none."""
        later = [epoch.seconds for epoch in self.epochs[1:]]
        return self.epochs[0].seconds / median(later) if later else None


@dataclass(frozen=True)
class PrecisionFigures:
    """Everything that was measured."""

    runs: tuple[PrecisionRun, ...]
    failures: Mapping[str, str]
    """Why a precision could not be trained, by its name."""
    batches: BatchSizeReport | None
    """None: batches of other sizes were not measured."""


def precision_run(
    precision: str, events: Iterable[Event], epoch_steps: int, global_batch: int
) -> PrecisionRun:
    """Return the figures of a run that recorded each step.

    Args:
        epoch_steps: steps of an epoch.

    Raises:
        ValueError: it has recorded no steps.
    """
    every = list(events)
    # of a run that was restarted, and began anew, the last attempt counts
    steps = [*{event.step: event for event in every if isinstance(event, StepLogged)}.values()]
    if not steps:
        raise ValueError(f"{precision}: no step was recorded")
    validated = {event.step: event for event in every if isinstance(event, Validated)}
    parts = [steps[at : at + epoch_steps] for at in range(0, len(steps), epoch_steps)]
    later = [event for part in parts[1:] for event in part] or steps
    step_s = median(map(_seconds, later))
    peaks = [event.peak_memory_bytes or event.peak_rss_bytes or 0.0 for event in steps]
    return PrecisionRun(
        precision=precision,
        epochs=tuple(_epoch(part, validated.get(part[-1].step), global_batch) for part in parts),
        step_s=step_s,
        samples_per_s=global_batch / step_s,
        peak_bytes=round(max(peaks)) or None,
        is_gpu=any(event.peak_memory_bytes is not None for event in steps),
        skipped_steps=int(steps[-1].get("skipped_steps") or 0),
        losses=tuple((event.step, event.loss) for event in steps if event.loss is not None),
    )


def _seconds(event: StepLogged) -> float:
    return event.step_s - (event.validation_s or 0.0)


def _epoch(
    part: Sequence[StepLogged], validated: Validated | None, global_batch: int
) -> EpochFigures:
    seconds = sum(map(_seconds, part))
    losses = [event.loss for event in part if event.loss is not None]
    found = [event.get("accuracy") for event in part]
    trained = [value for value in found if isinstance(value, float)]
    accuracy = None if validated is None else validated.get("val_accuracy")
    if accuracy is None and trained:
        accuracy = fmean(trained)
    return EpochFigures(
        seconds=seconds,
        samples_per_s=global_batch * len(part) / seconds,
        loss=fmean(losses) if losses else None,
        accuracy=accuracy,
        validation_loss=None if validated is None else validated.get("val_loss"),
    )


def conclusions(found: PrecisionFigures) -> list[tuple[str, str]]:
    """Describe what was found, in named lines."""
    lines = [(run.precision, _described(run, found)) for run in found.runs]
    lines += [(name, f"could not be trained: {why}") for name, why in found.failures.items()]
    if len(found.runs) > 1:
        fastest = max(found.runs, key=lambda run: run.samples_per_s)
        slowest = min(found.runs, key=lambda run: run.samples_per_s)
        factor = fastest.samples_per_s / slowest.samples_per_s
        lines.append(
            ("fastest", f"{fastest.precision}, {factor:.2f} times as fast as {slowest.precision}")
        )
    return lines


def _described(run: PrecisionRun, found: PrecisionFigures) -> str:
    last, epochs = run.epochs[-1], count(len(run.epochs), "epoch")
    parts = [f"{run.samples_per_s:,.1f} samples/s"]
    if run.peak_bytes is not None:
        parts.append(f"peak {'' if run.is_gpu else 'of the process '}{size(run.peak_bytes)}")
    if last.accuracy is not None:
        parts.append(f"accuracy {last.accuracy:.1%} after {epochs}")
    elif (loss := last.validation_loss or last.loss) is not None:
        parts.append(f"loss {loss:.4g} after {epochs}")
    if run.first_epoch_factor is not None:
        parts.append(f"the first epoch takes {run.first_epoch_factor:.2f} times the later ones")
    parts.append(count(run.skipped_steps, "skipped step"))
    if (best := best_of(found, run.precision)) is not None:
        parts.append(f"best batch {best}{_limit_of(found, run.precision, best)}")
    return "; ".join(parts)


def best_of(found: PrecisionFigures, precision: str) -> int | None:
    """Return the best number of samples of a batch in one precision; None: not measured."""
    if found.batches is None:
        return None
    best = best_batch(one for one in found.batches.timings if one.precision == precision)
    return None if best is None else best.samples


def _limit_of(found: PrecisionFigures, precision: str, best: int) -> str:
    """Say what kept the search from batches larger than the best one, if something did."""
    assert found.batches is not None
    larger = [
        one for one in found.batches.timings if one.precision == precision and one.samples > best
    ]
    if not larger:
        return ", the largest that was tried"
    return ", the largest that fits" if all(one.step_s is None for one in larger) else ""


def record(found: PrecisionFigures) -> dict[str, Any]:
    """Return the figures for programs."""
    return {
        "runs": [
            {
                **asdict(run),
                "first_epoch_factor": run.first_epoch_factor,
                "best_batch": best_of(found, run.precision),
            }
            for run in found.runs
        ],
        "failures": dict(found.failures),
        "batches": None
        if found.batches is None
        else {
            **asdict(found.batches),
            "timings": [
                {**asdict(one), "samples_per_s": one.samples_per_s} for one in found.batches.timings
            ],
        },
    }
