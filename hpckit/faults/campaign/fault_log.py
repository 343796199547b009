"""The log of the faults of a campaign, written as they happen, so that a campaign that ends early
can be judged."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json, write_json


@dataclass(frozen=True)
class RecordedFault:
    """A fault that happened."""

    time: float
    """Seconds since the epoch."""
    kind: str
    """A `DrillKind`, or a site's own fault."""
    step: int
    """The last step finished before it."""
    what: str
    harmed: str | None = None
    """Name of the object of the store that it damaged."""
    rank: int | None = None
    """The rank that it hit, if that is what has to be found out."""
    caused: float | None = None
    """Seconds since the epoch at which it had been caused, which takes a while in a Slurm job.
    None: it was recorded by an earlier version."""


class CampaignLog:
    """The log of a campaign in its folder: its two runs, and each fault that happened."""

    def __init__(self, folder: Path) -> None:
        self._runs, self._faults = folder / "runs.json", folder / "struck.jsonl"

    def begin(self, run: RunDir, reference: RunDir) -> None:
        """Record the run that gets the faults and the undisturbed one."""
        write_json(self._runs, {"run": str(run.path), "reference": str(reference.path)})

    def add(self, struck: RecordedFault) -> None:
        """Append a fault."""
        with open(self._faults, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(struck)) + "\n")

    def runs(self) -> tuple[RunDir, RunDir] | None:
        """Return the arguments of `begin`; None: it was not called."""
        known = read_json(self._runs)
        return known and (RunDir(Path(known["run"])), RunDir(Path(known["reference"])))

    def faults(self) -> tuple[RecordedFault, ...]:
        """Return the faults in the order in which they happened. The last one is left out if its
        line is incomplete.

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
