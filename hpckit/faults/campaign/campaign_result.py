"""The result of a campaign in numbers, for each kind of fault and for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from hpckit.events.event_log import Event, read_events
from hpckit.events.schema import StepLogged
from hpckit.faults.campaign.campaign_runner import CampaignOutcome
from hpckit.faults.campaign.fault_schedule import STEP_S
from hpckit.faults.campaign.recovery_time import RecoveryTime, recovery_time
from hpckit.planner.goodput.goodput_prediction import FaultCampaign, MeasuredFault, predict
from hpckit.report.ettr import training_share
from hpckit.rundir.directory import RunDir

PARTS = tuple(field.name for field in fields(RecoveryTime))


@dataclass(frozen=True)
class FaultKindRow:
    """The faults of one kind."""

    kind: str
    faults: int
    total_s: float
    """Median of the seconds from a fault to the first new step."""
    slowest_s: float
    parts_s: dict[str, float]
    """Mean seconds of each part, see `RecoveryTime`."""


@dataclass(frozen=True)
class CampaignResult:
    """The result of a campaign."""

    faults: int
    steps: int
    seconds: float
    """Seconds from the first step to the last."""
    ettr: float
    """The share of this time in steps that count, at their usual pace."""
    predicted: float
    """The share that `hpckit.planner.goodput` predicts from the rows and the pace of the
    undisturbed run. It differs from the measured one if something took time that neither
    includes."""
    rows: tuple[FaultKindRow, ...]
    problems: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)


def result_of(outcome: CampaignOutcome) -> CampaignResult:
    """Compute the result from the events of the campaign's run."""
    events = read_events(outcome.run.events)
    steps = [event for event in events if isinstance(event, StepLogged)]
    seconds = steps[-1].time - steps[0].time if steps else 0.0
    rows = tuple(_rows(outcome, events))
    return CampaignResult(
        faults=len(outcome.struck),
        steps=max((event.step for event in steps), default=0),
        seconds=seconds,
        ettr=training_share(steps, STEP_S),
        predicted=_predicted(rows, seconds, _pace_s(outcome.reference)),
        rows=rows,
        problems=outcome.problems,
    )


def markdown(result: CampaignResult) -> str:
    """Return the result as a Markdown page."""
    head = ["fault", "times", "s, median", "slowest", *PARTS]
    lines = [
        f"{result.faults} faults in {result.seconds / 60:.1f} minutes and {result.steps:,} steps:"
        f" {len(result.problems)} violations,"
        f" training share {result.ettr:.3f} ({result.predicted:.3f} predicted)",
        "",
        *(f"- {problem}" for problem in result.problems),
        *([""] if result.problems else []),
        _line(head),
        _line(["---"] * len(head)),
        *(_line(cells(row)) for row in result.rows),
    ]
    return "\n".join(lines) + "\n"


def cells(row: FaultKindRow) -> list[str]:
    """Return the cells of a table."""
    parts = (f"{row.parts_s[part]:.1f}" for part in PARTS)
    return [str(row.kind), str(row.faults), f"{row.total_s:.1f}", f"{row.slowest_s:.1f}", *parts]


def _pace_s(run: RunDir) -> float:
    """Return the seconds from step to step, including saves, where no fault was active."""
    steps = [event for event in read_events(run.events) if isinstance(event, StepLogged)]
    share = training_share(steps, STEP_S)
    return max(STEP_S, STEP_S / share) if share else STEP_S


def _predicted(rows: Sequence[FaultKindRow], seconds: float, pace_s: float) -> float:
    """Return the prediction, with rates of the job as a whole, and each fault after the recovery
    from the one before."""
    faults = {
        str(row.kind): MeasuredFault(
            per_node_hour=3600 * row.faults / seconds,
            detect_s=row.parts_s["detect"],
            queue_s=row.parts_s["queue"],
            meet_s=row.parts_s["meet"],
            load_s=row.parts_s["load"],
            steps_again=row.parts_s["recompute"] / pace_s,
        )
        for row in rows
    }
    return predict(FaultCampaign(1, STEP_S, pace_s - STEP_S, faults, is_patient=True)).ettr


def _rows(outcome: CampaignOutcome, events: Sequence[Event]) -> list[FaultKindRow]:
    found: dict[str, list[RecoveryTime]] = {}
    for number, struck in enumerate(outcome.struck, start=1):
        until = outcome.struck[number].time if number < len(outcome.struck) else math.inf
        if (parts := recovery_time(events, struck, until)) is not None:
            found.setdefault(struck.kind, []).append(parts)
    return [_row(kind, splits) for kind, splits in sorted(found.items())]


def _row(kind: str, splits: Sequence[RecoveryTime]) -> FaultKindRow:
    totals = [one.total for one in splits]
    means = {part: sum(float(getattr(one, part)) for one in splits) / len(splits) for part in PARTS}
    return FaultKindRow(kind, len(splits), median(totals), max(totals), means)


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"
