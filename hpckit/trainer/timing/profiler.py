"""The profile of a few steps by torch's profiler: a trace, and a table of the operators that took
the most time.

Perfetto (ui.perfetto.dev) and TensorBoard's profiler plug-in open `*.pt.trace.json.gz`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from hpckit.config.spec import ProfileSpec
from hpckit.events.schema import Degraded, DegradedSubject, Event, Profiled

log = logging.getLogger(__name__)

ROWS = 20
"""Number of operators in the table."""


class Profiler:
    """Profiles the steps that `debug.profile` names. A run that resumes after the first of them is
    not profiled."""

    def __init__(
        self, spec: ProfileSpec, folder: Path, name: str, emit: Callable[[Event], None]
    ) -> None:
        """Args:
        name: prefix of the file names, which no other rank or attempt has.
        emit: writes an event.
        """
        self._spec, self._folder, self._name, self._emit = spec, folder, name, emit
        self._profile: profile | None = None

    def begin_step(self, step: int) -> None:
        """Begin step `step` (from 1), and end the step before it."""
        start = self._spec.start
        if self._profile is not None:
            self._profile.step()
        elif start is not None and step == start - 1:
            self._profile = profile(
                activities=_activities(),
                schedule=schedule(wait=0, warmup=1, active=self._spec.steps, repeat=1),
                on_trace_ready=self._write,
                record_shapes=True,
            )
            self._profile.start()

    def close(self) -> None:
        """End a profile, even in the middle of its steps, and write it."""
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _write(self, done: profile) -> None:
        """Write the trace and the table. If the disk is full, the trace is lost and the run
        continues."""
        by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = done.key_averages().table(sort_by=by, row_limit=ROWS)
        trace = self._folder / f"{self._name}.pt.trace.json.gz"
        log.info("steps %s: %s\n%s", self._steps, trace, table)
        try:
            self._folder.mkdir(exist_ok=True)
            done.export_chrome_trace(str(trace))
            (self._folder / f"{self._name}.txt").write_text(table, encoding="utf-8")
        except OSError as error:
            log.error("the trace could not be written: %s", error)
            self._emit(
                Degraded(
                    subject=DegradedSubject.PROFILER,
                    what=f"no trace of steps {self._steps}: {error}",
                )
            )
        else:
            self._emit(Profiled(steps=self._steps, trace=str(trace)))

    @property
    def _steps(self) -> str:
        first = self._spec.start or 0
        return f"{first} to {first + self._spec.steps - 1}"


def _activities() -> list[Any]:
    gpus = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    return [ProfilerActivity.CPU, *gpus]
