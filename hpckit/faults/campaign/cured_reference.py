"""What a run of a campaign has left out because of spikes of its loss, and the config of the
reference run that never had it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from data.order.skipped_ranges import NOTHING_SKIPPED, SkippedRanges
from hpckit.config.spec import RunSpec
from hpckit.events.schema import Event, SpikeFound, TrainingStarted, UpdateSkipped
from hpckit.events.skipped_updates import skipped_updates
from hpckit.faults.campaign.fault_log import RecordedFault
from hpckit.faults.fault_plan import WORKLOAD, DrillKind
from hpckit.report.history import build_history
from hpckit.rundir.sample_ledger import LedgerEntry

POISONED = "samples_poisoned"
"""The kind of the event that a rank writes when it poisons its samples of a step, with the step and
the positions of the samples."""
LEAVE_OUT, WITHOUT_UPDATE = "leave_out", "without_update"
"""Keys of `user_config` of a reference run: the ranges of positions whose samples it never gets,
and the steps in which it makes no update."""


@dataclass(frozen=True)
class Cures:
    """What a run has left out."""

    samples: SkippedRanges = NOTHING_SKIPPED
    """The positions of samples (`heal=rollback`)."""
    updates: tuple[int, ...] = ()
    """The steps whose update it did not make (`heal=skip`)."""

    def __bool__(self) -> bool:
        return bool(self.samples or self.updates)

    @property
    def overrides(self) -> list[str]:
        """The overrides of a run that leaves the same out from its beginning, without healing."""
        own = {LEAVE_OUT: self.samples.to_state(), WITHOUT_UPDATE: list(self.updates)}
        return [f"entry={WORKLOAD}", "heal=off", f"user_config={_hydra(own)}"]


def cures_of_events(events: Sequence[Event]) -> Cures:
    """Return what the run with these events has left out."""
    return Cures(build_history(events).left_out, tuple(skipped_updates(events)))


def cures_of_spec(spec: RunSpec) -> Cures:
    """Return what a reference run with this config leaves out."""
    own = spec.user_config
    return Cures(SkippedRanges.of_state(own.get(LEAVE_OUT, [])), tuple(own.get(WITHOUT_UPDATE, ())))


def cure_problems(
    events: Sequence[Event],
    kept: Collection[LedgerEntry],
    struck: Sequence[RecordedFault] = (),
) -> list[str]:
    """Check that a run has left out the steps whose samples were poisoned, and no others but those
    in which a parameter became NaN: a loss that is NaN is a spike, whatever it came from.

    Args:
        kept: the entries of the ledgers that count.
        struck: the faults that hit the run.
    """
    found, poisoned = list[str](), set[int]()
    left_out, started_s = set[int](), 0.0
    for event in events:
        if isinstance(event, TrainingStarted):
            poisoned.clear()
            started_s = event.time
        elif event.kind == POISONED:
            poisoned.add(event["step"])
        elif isinstance(event, SpikeFound | UpdateSkipped):
            first = event.first_step if isinstance(event, SpikeFound) else event.step
            nan = (fault.time for fault in struck if fault.kind == DrillKind.NAN)
            if any(started_s < time < event.time for time in nan):
                continue
            found += [
                f"step {step}: it was left out ({event.what}), but its samples are sound"
                for step in range(first, event.step + 1)
                if step not in poisoned
            ]
    if any(isinstance(event, SpikeFound) for event in events):
        left_out = {at for e in events if e.kind == POISONED for at in e["positions"]}
    return found + [
        f"step {entry.step}: the sample at position {position} is poisoned"
        for entry in kept
        for position in entry.positions
        if position in left_out
    ]


def _hydra(own: Mapping[str, object]) -> str:
    return "{" + ",".join(f"{name}:{json.dumps(value)}" for name, value in own.items()) + "}"
