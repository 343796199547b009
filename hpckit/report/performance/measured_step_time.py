"""How the time of a run's steps was spent, from their records. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpckit.events.schema import StepLogged
from hpckit.events.step_phases import NAMES, PARTS, Part
from hpckit.report.history import History


@dataclass(frozen=True)
class MeasuredStepTime:
    """The time of all kept steps; seconds are means over ranks."""

    steps: int
    """Number of steps that the records cover."""
    seconds: float
    """Seconds of these steps."""
    parts: dict[Part, float]
    """Seconds of each step phase; empty: the records are of a version that did not split steps."""
    tokens_per_s: float | None
    samples_per_s: float | None
    mfu: float | None
    peak_bytes: float | None
    """Peak memory of the rank that used most, of the kind (GPU or process) that the next field
    names."""
    is_gpu: bool
    traced: int
    """Number of traced steps."""
    exposed: float | None
    """Share of the traced steps in which collectives ran and nothing was computed."""
    loader: str | None = None
    """The class of the loader, with its module, if it is of another library."""

    @property
    def is_split(self) -> bool:
        """Whether the training function says when the model's passes begin and end."""
        return any(self.parts.get(part) for part in ("forward", "backward", "compute"))

    def share(self, *some: Part) -> float:
        """Return the share of the time that these phases take."""
        return sum(self.parts.get(one, 0.0) for one in some) / self.seconds if self.seconds else 0.0

    def record(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return asdict(self)


def step_time(history: History) -> MeasuredStepTime:
    """Return the time of the kept steps of the run."""
    covered = list(_covered(history))
    seconds = sum(steps * event.step_s for event, steps in covered)
    of_gpu = [event.peak_memory_bytes for event, _ in covered if event.peak_memory_bytes]
    peaks = of_gpu or [event.peak_rss_bytes for event, _ in covered if event.peak_rss_bytes]
    traced = [event for event, _ in covered if event.traced_step_s]
    traced_s = sum(event.traced_step_s or 0.0 for event in traced)
    exposed_s = sum(event.communication_exposed_s or 0.0 for event in traced)
    return MeasuredStepTime(
        steps=sum(steps for _, steps in covered),
        seconds=seconds,
        parts=_parts(covered),
        tokens_per_s=_mean(covered, "tokens_per_s"),
        samples_per_s=_mean(covered, "samples_per_s"),
        mfu=_mean(covered, "mfu"),
        peak_bytes=max(peaks) if peaks else None,
        is_gpu=bool(of_gpu),
        traced=len(traced),
        exposed=exposed_s / traced_s if traced_s else None,
        loader=history.loader,
    )


def _covered(history: History) -> Iterator[tuple[StepLogged, int]]:
    """Yield each kept record with the number of steps that it covers."""
    starts = {(life.generation, life.attempt): life.start_step for life in history.lives}
    before = 0
    for step, event in sorted(history.kept.items()):
        life = (event.generation, event.attempt or 0)
        yield event, step - max(before, starts.get(life, 0))
        before = step


def _parts(covered: Sequence[tuple[StepLogged, int]]) -> dict[Part, float]:
    if all(event.other_s is None for event, _ in covered):
        return {}
    return {
        part: sum(steps * event.get(name, 0.0) for event, steps in covered)
        for part, name in zip(PARTS, NAMES, strict=True)
    }


def _mean(covered: Sequence[tuple[StepLogged, int]], name: str) -> float | None:
    """Return the mean over the time of the records that have the field."""
    known = [
        (event[name], steps * event.step_s)
        for event, steps in covered
        if event.get(name) is not None
    ]
    seconds = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / seconds if seconds else None
