"""What a campaign came to, in numbers: of each kind of fault, and of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from hpckit.drill.campaign import Outcome
from hpckit.drill.schedule import STEP_S
from hpckit.drill.split import Split, split
from hpckit.plan.prediction import Campaign, Measured, predict
from hpckit.report.ettr import training_share
from hpckit.run.directory import RunDir
from hpckit.run.events import Event, read_events

PARTS = tuple(field.name for field in fields(Split))


@dataclass(frozen=True)
class Row:
    """All faults of one kind."""

    kind: str
    faults: int
    total_s: float
    """Median of the seconds from a fault to the first new step."""
    slowest_s: float
    parts_s: dict[str, float]
    """Mean of each part, see `Split`."""


@dataclass(frozen=True)
class Result:
    """Of a campaign."""

    faults: int
    steps: int
    seconds: float
    """From the first step to the last."""
    ettr: float
    """The share of it that is steps which count, at their usual pace."""
    predicted: float
    """What `hpckit.plan.prediction` makes of the rows and of the undisturbed run's pace: other than
    measured where something took time that neither has."""
    rows: tuple[Row, ...]
    problems: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def result_of(outcome: Outcome) -> Result:
    """Told by the events of its run."""
    events = read_events(outcome.run.events)
    steps = [event for event in events if event.kind == "step"]
    seconds = steps[-1].time - steps[0].time if steps else 0.0
    rows = tuple(_rows(outcome, events))
    return Result(
        faults=len(outcome.struck),
        steps=max((event["step"] for event in steps), default=0),
        seconds=seconds,
        ettr=training_share(steps, STEP_S),
        predicted=_predicted(rows, seconds, _pace_s(outcome.reference)),
        rows=rows,
        problems=outcome.problems,
    )


def markdown(result: Result) -> str:
    """The result as a page."""
    head = ["fault", "times", "s, median", "slowest", *PARTS]
    lines = [
        f"{result.faults} faults in {result.seconds / 60:.1f} minutes and {result.steps:,} steps:"
        f" {len(result.problems)} violations,"
        f" ETTR {result.ettr:.3f} ({result.predicted:.3f} predicted)",
        "",
        *(f"- {problem}" for problem in result.problems),
        *([""] if result.problems else []),
        _line(head),
        _line(["---"] * len(head)),
        *(_line(cells(row)) for row in result.rows),
    ]
    return "\n".join(lines) + "\n"


def cells(row: Row) -> list[str]:
    """As a table shows it."""
    parts = (f"{row.parts_s[part]:.1f}" for part in PARTS)
    return [str(row.kind), str(row.faults), f"{row.total_s:.1f}", f"{row.slowest_s:.1f}", *parts]


def _pace_s(run: RunDir) -> float:
    """Seconds from step to step, saves and all, where nothing was wrong."""
    steps = [event for event in read_events(run.events) if event.kind == "step"]
    share = training_share(steps, STEP_S)
    return max(STEP_S, STEP_S / share) if share else STEP_S


def _predicted(rows: Sequence[Row], seconds: float, pace_s: float) -> float:
    """With rates of the job as a whole, and each fault after the run had come back."""
    faults = {
        str(row.kind): Measured(
            per_node_hour=3600 * row.faults / seconds,
            detect_s=row.parts_s["detect"],
            queue_s=row.parts_s["queue"],
            meet_s=row.parts_s["meet"],
            load_s=row.parts_s["load"],
            steps_again=row.parts_s["recompute"] / pace_s,
        )
        for row in rows
    }
    return predict(Campaign(1, STEP_S, pace_s - STEP_S, faults, is_patient=True)).ettr


def _rows(outcome: Outcome, events: Sequence[Event]) -> list[Row]:
    found: dict[str, list[Split]] = {}
    for number, struck in enumerate(outcome.struck, start=1):
        until = outcome.struck[number].time if number < len(outcome.struck) else math.inf
        if (parts := split(events, struck, until)) is not None:
            found.setdefault(struck.kind, []).append(parts)
    return [_row(kind, splits) for kind, splits in sorted(found.items())]


def _row(kind: str, splits: Sequence[Split]) -> Row:
    totals = [one.total for one in splits]
    means = {part: sum(float(getattr(one, part)) for one in splits) / len(splits) for part in PARTS}
    return Row(kind, len(splits), median(totals), max(totals), means)


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"
