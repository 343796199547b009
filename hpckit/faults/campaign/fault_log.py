"""The faults that came, written down as they come: a campaign that ends early can be judged."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json, write_json


@dataclass(frozen=True)
class RecordedFault:
    """A fault that came."""

    time: float
    """Seconds since the epoch."""
    kind: str
    """A `DrillKind`, or a site's own."""
    step: int
    """Finished before it."""
    what: str
    harmed: str | None = None
    """Name of the object of the store that it changed."""


class CampaignLog:
    """What a campaign writes down in its folder: its two runs, and each fault that came."""

    def __init__(self, folder: Path) -> None:
        self._runs, self._faults = folder / "runs.json", folder / "struck.jsonl"

    def begin(self, run: RunDir, reference: RunDir) -> None:
        """The run that is to be broken, and the one that nobody disturbed."""
        write_json(self._runs, {"run": str(run.path), "reference": str(reference.path)})

    def add(self, struck: RecordedFault) -> None:
        """It came."""
        with open(self._faults, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(struck)) + "\n")

    def runs(self) -> tuple[RunDir, RunDir] | None:
        """As `begin` was told; None: it was not."""
        known = read_json(self._runs)
        return known and (RunDir(Path(known["run"])), RunDir(Path(known["reference"])))

    def faults(self) -> tuple[RecordedFault, ...]:
        """In the order in which they came. The last one is left out if its line is not whole.

        Raises:
            ValueError: another line is damaged, with its number.
        """
        if not self._faults.exists():
            return ()
        *lines, _ = self._faults.read_text(encoding="utf-8").split("\n")
        return tuple(self._parsed(number, line) for number, line in enumerate(lines, 1))

    def _parsed(self, number: int, line: str) -> RecordedFault:
        try:
            return RecordedFault(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self._faults}, line {number}: {error}") from error
