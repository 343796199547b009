"""The delivery mark, a small file that says up to which step a tracker has the records of a run, so
that no later attempt sends them twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpckit.system.atomic_files import read_json, write_json
from hpckit.trainer.trackers.tracker_interface import StepRecord


@dataclass(frozen=True)
class DeliveryMark:
    """The delivery mark of one tracker."""

    run: str | None = None
    """The tracker's own id of the run; None if it has none yet."""
    delivered: dict[str, int] = field(default_factory=dict)
    """The last delivered step of each kind of record."""

    def has(self, record: StepRecord) -> bool:
        """Whether the record is of a step up to which a previous attempt has delivered records."""
        return record.step <= self.delivered.get(record.kind, 0)

    def after(self, records: Sequence[StepRecord], run: str) -> DeliveryMark:
        """Return the mark after these records were delivered too."""
        newest = {record.kind: record.step for record in records}
        return replace(self, run=run, delivered=self.delivered | newest)


def read_mark(path: Path) -> DeliveryMark:
    """Return the mark at `path`; an empty one if there is none, or if it is damaged."""
    found: Any = read_json(path)
    if not isinstance(found, dict):
        return DeliveryMark()
    run, steps = found.get("run"), found.get("told")
    if not isinstance(run, str | None) or not isinstance(steps, dict):
        return DeliveryMark()
    return DeliveryMark(
        run, {str(kind): step for kind, step in steps.items() if isinstance(step, int)}
    )


def write_mark(path: Path, mark: DeliveryMark) -> None:
    """Write the mark to `path`. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    write_json(path, {"run": mark.run, "told": mark.delivered})
