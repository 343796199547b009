"""Faults that a site defines by its own commands: of a node's power, its network, slurmctld.

A YAML file names them:

gone:
  do: [./node, kill, "{host}"]
  undo: [./node, start, "{host}"]
  after_s: 20
  rate: 2

The words of a command are not passed to a shell; `{host}`, `{node}` and `{job}` in them are the
victim's, and `{other}` is the host of another node that trains.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Positive, Text
from hpckit.faults.fault_commands import run_command
from hpckit.faults.fault_plan import DrillError, DrillKind, ImpossibleDrillError

UNDO_S = 60.0
"""Seconds within which a fault has to be undone."""
_PAUSE_S = 1.0
_OTHER = "{other}"

Command = Annotated[tuple[Text, ...], Field(min_length=1)]


@dataclass(frozen=True, config=GROUP)
class SiteFault:
    """A fault of a site."""

    do: Command
    """Command that causes it, run in the folder of the file; exit status 0 means success."""
    undo: Command | None = None
    """Command that is run `after_s` later, whatever happened to the run, and is repeated for a
    minute until it succeeds."""
    after_s: Positive = 20.0
    rate: Positive = 1.0
    """Rate, relative to the other kinds of faults."""
    restarts: bool = True
    """Whether ranks are expected to be restarted because of it."""


class SiteFaultSet:
    """The faults of one file, and those that have to be undone."""

    def __init__(self, faults: Mapping[str, SiteFault], folder: Path) -> None:
        self.faults, self._folder = faults, folder
        self._timers: list[Timer] = []
        self._problems: list[str] = []

    def play(
        self, kind: str, host: str, node: int, job: str | None, other: str | None = None
    ) -> None:
        """Cause a fault, which is undone later without a further call.

        Raises:
            ImpossibleDrillError: it needs another host, and there is none.
            DrillError: the command failed.
        """
        fault = self.faults[kind]
        if other is None and any(_OTHER in word for word in (*fault.do, *(fault.undo or ()))):
            raise ImpossibleDrillError(f"{kind}: this requires two nodes, but only one trains")
        places = {"{host}": host, "{node}": str(node), "{job}": job or "", _OTHER: other or ""}
        self._run(_filled(fault.do, places))
        if fault.undo is not None:
            timer = Timer(fault.after_s, self._undo, [_filled(fault.undo, places)])
            timer.start()
            self._timers.append(timer)

    def settle(self) -> list[str]:
        """Wait until all faults are undone; returns those that were not, one line each."""
        for timer in self._timers:
            timer.join()
        self._timers, problems, self._problems = [], self._problems, []
        return problems

    def _undo(self, command: Sequence[str]) -> None:
        """Undo a fault, with retries for a while, because another fault may prevent it."""
        deadline_s = time.monotonic() + UNDO_S
        while True:
            try:
                self._run(command)
                return
            except DrillError as error:
                if time.monotonic() > deadline_s:
                    self._problems.append(f"not undone: {error}")
                    return
            time.sleep(_PAUSE_S)

    def _run(self, command: Sequence[str]) -> None:
        run_command(command, " ".join(command), self._folder)


def load_site(path: Path) -> SiteFaultSet:
    """Load the faults of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is invalid, with the reason.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        found = TypeAdapter(dict[str, SiteFault]).validate_json(json.dumps(values))
    except (yaml.YAMLError, TypeError, UnicodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path}: {where}: {first['msg']}") from None
    for name in found:
        if not name.isidentifier() or name in list(DrillKind):
            raise ValueError(f"{path}: {name!r} is the name of another fault, or not a plain word")
    return SiteFaultSet(found, path.parent.absolute())


def _filled(words: Sequence[str], places: Mapping[str, str]) -> list[str]:
    found = []
    for word in words:
        for place, value in places.items():
            word = word.replace(place, value)
        found.append(word)
    return found
