"""Saying how a generation ended: in the log, in the events and in `verdict.json`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from hpckit.elastic.report import ExitReport
from hpckit.elastic.verdict import LEAVES, Kind, Verdict
from hpckit.launch.lastcurves import finish_curves
from hpckit.launch.reserve import Reserve
from hpckit.run.directory import RunDir
from hpckit.run.durable import write_json
from hpckit.run.events import EventLog
from hpckit.run.length import last_step
from hpckit.run.spec import RunSpec

log = logging.getLogger(__name__)


class Conclusions:
    """Of the generations of one submission."""

    def __init__(self, run: RunDir, spec: RunSpec, submission: int, events: EventLog) -> None:
        self._run, self._spec, self._submission = run, spec, submission
        self._events = events
        self._reserve = Reserve(run.path)

    def begin(self) -> None:
        """Keep the room that they take."""
        self._reserve.keep()

    def conclude(
        self,
        generation: int,
        verdict: Verdict,
        reports: Sequence[ExitReport],
        saved_step: int,
        words: str | None,
    ) -> None:
        """With what is wrong with the run's disk, if it is full: nobody else could write that.

        Args:
            words: as of `hpckit.elastic.verdict.Past`.
        """
        if self._reserve.give_way():
            full = f"{verdict.reason}; the disk of {self._run.path} is full"
            verdict = replace(verdict, reason=full)
        log.info("generation %d: %s (%s)", generation, verdict.kind, verdict.reason)
        self._events.emit(
            "generation_ended",
            generation=generation,
            verdict=verdict.kind,
            reason=verdict.reason,
            final=verdict.final,
            step=min((report.step for report in reports), default=0),
            saved_step=saved_step,
            words=words,
        )
        self.record(generation, verdict, saved_step)
        if verdict.final:
            self._reserve.drop()

    def leave(self, verdict: Verdict, is_asked_to_leave: Callable[[], bool]) -> None:
        """Once the last generation is over. Who asked for that waits, and had all written."""
        if verdict.final and verdict.kind not in (*LEAVES, Kind.STOPPED):
            finish_curves(self._run, self._events, is_asked_to_leave)

    def record(self, generation: int, verdict: Verdict, saved_step: int) -> None:
        """Write `verdict.json` alone; if it cannot be, the log and the events have to do."""
        record = {
            **asdict(verdict),
            "generation": generation,
            "submission": self._submission,
            "saved_step": saved_step,
            "steps": last_step(self._spec),
            "time": time.time(),
        }
        try:
            write_json(self._run.verdict, record)
        except OSError as error:
            log.error("verdict.json is not written: %s", error)
