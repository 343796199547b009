"""Fault schedules: when to inject which fault, as a pure function of a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpckit.faults.fault_plan import DrillKind

STEP_S = 0.2
"""Seconds of a step of the run that gets the faults, see `workload`."""
USUAL: dict[str, float] = {
    DrillKind.WORKER: 3,
    DrillKind.HANG: 1,
    DrillKind.AGENT: 1,
    DrillKind.NODE: 2,
    DrillKind.SERVICE: 2,
    DrillKind.SLOW: 1,
    DrillKind.PREEMPT: 1,
    DrillKind.TIMEOUT: 1,
    DrillKind.SUPERVISOR: 1,
    DrillKind.FULL: 1,
    DrillKind.ENOSPC: 1,
    DrillKind.EIO: 1,
    DrillKind.NAN: 1,
    DrillKind.MEMORY: 1,
    DrillKind.STALL: 1,
    DrillKind.WRONG: 1,
    DrillKind.SPIKE: 1,
    DrillKind.DAMAGE: 1,
    DrillKind.MANIFEST: 1,
    DrillKind.CACHE: 1,
    DrillKind.WORKER_TERM: 1,
    DrillKind.AGENT_TERM: 1,
    DrillKind.AGENT_STOP: 1,
    DrillKind.SERVICE_TERM: 1,
    DrillKind.SERVICE_STOP: 1,
    DrillKind.SUPERVISOR_STOP: 1,
    DrillKind.REQUEUE: 1,
}
"""Relative rates of the kinds of faults."""


@dataclass(frozen=True)
class ScheduledFault:
    """One fault."""

    step: int
    """Least number of finished steps of the run when the fault is injected."""
    kind: str
    """A `DrillKind`, or a site's own fault."""
    target: float
    """A number in [0, 1) that selects one of the ranks or nodes that exist then."""

    def number(self, count: int) -> int:
        """Return the number of its target among `count` targets."""
        return int(self.target * count)


def make_schedule(
    seed: int, steps: int, every: float, rates: Mapping[str, float]
) -> tuple[ScheduledFault, ...]:
    """Return faults at distances of half to one and a half of `every` steps, ascending; none before
    the first distance, nor in the last `every` steps.

    Args:
        rates: of each kind, relative to one another.
    """
    chance, found = random.Random(seed), []
    kinds, weights = list(rates), list(rates.values())
    step = 0
    while (step := step + max(1, round(every * chance.uniform(0.5, 1.5)))) <= steps - every:
        kind = chance.choices(kinds, weights)[0]
        found.append(ScheduledFault(step, kind, chance.random()))
    return tuple(found)


def parse_rates(text: str, known: Collection[str]) -> dict[str, float]:
    """Parse rates such as `worker=3,hang`; a kind without a number has 1.

    Args:
        known: the kinds that exist.

    Raises:
        ValueError: the text is invalid, with the reason.
    """
    found: dict[str, float] = {}
    for word in text.split(","):
        name, _, number = word.strip().partition("=")
        if name not in known:
            raise ValueError(f"{name!r} is not a fault; the faults are {', '.join(known)}")
        try:
            rate = float(number or 1)
        except ValueError:
            rate = -1.0
        if not 0 < rate < float("inf"):
            raise ValueError(f"{word.strip()}: a rate must be a number above 0")
        found[name] = rate
    return found


def save_schedule(path: Path, schedule: Sequence[ScheduledFault]) -> None:
    """Write the schedule as JSON, one fault per line."""
    lines = (json.dumps(asdict(planned)) for planned in schedule)
    path.write_text("".join(f"{line}\n" for line in lines))


def load_schedule(path: Path, known: Collection[str]) -> tuple[ScheduledFault, ...]:
    """Read what `save_schedule` wrote.

    Args:
        known: the kinds that exist.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a schedule, with the line.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(_planned(json.loads(line), known))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number} is not a planned fault: {error}") from error
    return tuple(found)


def _planned(fields: dict[str, Any], known: Collection[str]) -> ScheduledFault:
    target, kind = float(fields["target"]), fields["kind"]
    if kind not in known:
        raise ValueError(f"{kind!r} is not a fault; the faults are {', '.join(known)}")
    if not 0 <= target < 1:
        raise ValueError(f"target {target} is not in [0, 1)")
    return ScheduledFault(int(fields["step"]), kind, target)
