"""Saying how a generation ended: in the log, in the events and in `verdict.json`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from hpckit.agent.exit_report import ExitReport
from hpckit.agent.verdict_record import LEAVES, Verdict, VerdictKind
from hpckit.config.last_step import last_step
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir
from hpckit.supervisor.disk_reserve import DiskReserve
from hpckit.supervisor.tensorboard_backfill import finish_curves
from hpckit.system.atomic_files import write_json

log = logging.getLogger(__name__)


class GenerationRecorder:
    """Of the generations of one submission."""

    def __init__(self, run: RunDir, spec: RunSpec, submission: int, events: EventLog) -> None:
        self._run, self._spec, self._submission = run, spec, submission
        self._events = events
        self._reserve = DiskReserve(run.path)

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
            words: as of `hpckit.supervisor.verdict.PastGeneration`.
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
        if verdict.final and verdict.kind not in (*LEAVES, VerdictKind.STOPPED):
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
