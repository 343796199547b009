"""Records how a generation ended in the log, in the events and in `verdict.json`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from hpckit.agent.exit_report import ExitReport
from hpckit.agent.verdict_record import LEAVES, Verdict, VerdictKind
from hpckit.config.last_step import planned_steps
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventLog
from hpckit.events.schema import GenerationEnded
from hpckit.rundir.directory import RunDir
from hpckit.supervisor.disk_reserve import DiskReserve
from hpckit.supervisor.tensorboard_backfill import finish_curves
from hpckit.supervisor.verdict import PastGeneration
from hpckit.system.atomic_files import write_json

log = logging.getLogger(__name__)


class GenerationRecorder:
    """Writes the records of one submission's generations."""

    def __init__(self, run: RunDir, spec: RunSpec, submission: int, events: EventLog) -> None:
        self._run, self._spec, self._submission = run, spec, submission
        self._events = events
        self._reserve = DiskReserve(run.path)

    def reserve_space(self) -> None:
        """Reserves the disk space that the records need."""
        self._reserve.allocate()

    def record_end(
        self,
        generation: int,
        verdict: Verdict,
        reports: Sequence[ExitReport],
        saved_step: int,
        past: PastGeneration,
    ) -> None:
        """Records the end of a generation. If the run's disk is full, the reserve is released for
        the records and the verdict's reason says so.

        Args:
            past: what the judgement of the next generations needs of it.
        """
        if self._reserve.release_if_full():
            full = f"{verdict.reason}; the disk of {self._run.path} is full"
            verdict = replace(verdict, reason=full)
        log.info("generation %d: %s (%s)", generation, verdict.kind, verdict.reason)
        self._events.emit(
            GenerationEnded(
                generation=generation,
                verdict=verdict.kind,
                reason=verdict.reason,
                final=verdict.final,
                step=self._step_of(reports),
                saved_step=saved_step,
                words=past.words,
                place=past.place,
                repeats=past.repeats,
            )
        )
        self.write_verdict(generation, verdict, saved_step)
        if verdict.final:
            self._reserve.remove()

    def _step_of(self, reports: Sequence[ExitReport]) -> int:
        """Returns the number of finished steps; of some programs, only rank 0 tells them."""
        command = self._spec.command
        choose = max if command is not None and command.has_observed_steps else min
        return choose((report.step for report in reports), default=0)

    def complete_curves(self, verdict: Verdict, is_asked_to_leave: Callable[[], bool]) -> None:
        """Completes the TensorBoard files after the last generation. Not after a requested end: the
        requester waits, and all records were written before it."""
        if verdict.final and verdict.kind not in (*LEAVES, VerdictKind.STOPPED):
            finish_curves(self._run, self._events, is_asked_to_leave)

    def write_verdict(self, generation: int, verdict: Verdict, saved_step: int) -> None:
        """Writes only `verdict.json`. If that fails, it logs the error; the log and the events
        still hold the verdict."""
        record = {
            **asdict(verdict),
            "generation": generation,
            "submission": self._submission,
            "saved_step": saved_step,
            "steps": planned_steps(self._spec),
            "time": time.time(),
        }
        try:
            write_json(self._run.verdict, record)
        except OSError as error:
            log.error("cannot write verdict.json: %s", error)
