"""Saying how a generation ended: in the log, in the events and in `verdict.json`."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict

from hpckit.elastic.report import ExitReport
from hpckit.elastic.verdict import Verdict
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

    def conclude(
        self, generation: int, verdict: Verdict, reports: Sequence[ExitReport], saved_step: int
    ) -> None:
        log.info("generation %d: %s (%s)", generation, verdict.kind, verdict.reason)
        self._events.emit(
            "generation_ended",
            generation=generation,
            verdict=verdict.kind,
            reason=verdict.reason,
            final=verdict.final,
            step=min((report.step for report in reports), default=0),
            saved_step=saved_step,
        )
        self.record(generation, verdict, saved_step)

    def record(self, generation: int, verdict: Verdict, saved_step: int) -> None:
        """Write `verdict.json` alone; on a full disk the log and the events have to do."""
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
