"""How far a tracker was told of a run: a small file, so that no later attempt tells it twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hpckit.system.atomic_files import read_json, write_json
from hpckit.trainer.trackers.tracker_interface import StepRecord


@dataclass(frozen=True)
class DeliveryMark:
    """Of one tracker."""

    run: str | None = None
    """Its own name of the run; None: it has none yet."""
    told: dict[str, int] = field(default_factory=dict)
    """The last step of each kind of record."""

    def has(self, record: StepRecord) -> bool:
        """Whether a life before has told it, or could not."""
        return record.step <= self.told.get(record.kind, 0)

    def after(self, records: Sequence[StepRecord], run: str) -> DeliveryMark:
        """That of a tracker that has these too."""
        newest = {record.kind: record.step for record in records}
        return replace(self, run=run, told=self.told | newest)


def read_mark(path: Path) -> DeliveryMark:
    """That at `path`; an empty one where there is none, or one that is damaged."""
    found: Any = read_json(path)
    if not isinstance(found, dict):
        return DeliveryMark()
    run, told = found.get("run"), found.get("told")
    if not isinstance(run, str | None) or not isinstance(told, dict):
        return DeliveryMark()
    return DeliveryMark(
        run, {str(kind): step for kind, step in told.items() if isinstance(step, int)}
    )


def write_mark(path: Path, mark: DeliveryMark) -> None:
    """Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    write_json(path, asdict(mark))
