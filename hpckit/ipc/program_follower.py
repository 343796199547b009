"""Follows what rank 0 of a program writes, to know its steps and whether it hangs."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpckit.ipc.program_output import OutputLines, parse_line
from hpckit.ipc.program_scalars import ScalarFiles
from hpckit.ipc.program_session import ProgramSession
from hpckit.ipc.program_watch import ProgramWatch

_POLL_S = 0.5


class ProgramFollower(threading.Thread):
    """Reads what a program appends to its log and to its event files, and records the steps there.

    Args:
        log: the log of rank 0.
        pattern: of a line that reports a step; None: no line does.
        scalars: event files that report steps.
        watch: decides when the program counts as hung.
    """

    def __init__(
        self, log: Path, pattern: str | None, scalars: ScalarFiles | None, watch: ProgramWatch
    ) -> None:
        super().__init__(name="program follower", daemon=True)
        self._lines = OutputLines(log)
        self._pattern = None if pattern is None else re.compile(pattern)
        self._scalars, self._watch = scalars, watch
        self._is_over = threading.Event()
        self._session = ProgramSession.from_env()

    def run(self) -> None:
        while not self._is_over.wait(_POLL_S):
            self._record_new()

    def close(self) -> None:
        """Records what is left to read."""
        self._is_over.set()
        self.join()
        self._record_new()
        self._session.close()

    def _record_new(self) -> None:
        before = self._lines.offset
        for step, metrics in self._steps():
            self._session.report_output(step, metrics)
            self._watch.add_step(step, time.monotonic())
        if self._lines.offset != before:
            self._watch.add_output(time.monotonic())
        self._session.report_deadline(self._watch.deadline())

    def _steps(self) -> Iterator[tuple[int, Mapping[str, float]]]:
        for line in self._lines.read():
            if self._pattern is not None and (found := parse_line(line, self._pattern)) is not None:
                yield found
        if self._scalars is not None:
            yield from _newest(self._scalars.read())


def _newest(
    steps: Iterator[tuple[int, Mapping[str, float]]],
) -> Iterator[tuple[int, Mapping[str, float]]]:
    """Yields, of steps that were written together, the last one with a loss and the last one:
    all of them would be recorded as if each had taken no time."""
    last: tuple[int, Mapping[str, float]] | None = None
    with_loss: tuple[int, Mapping[str, float]] | None = None
    for one in steps:
        last = one if last is None or one[0] >= last[0] else last
        if "loss" in one[1] and (with_loss is None or one[0] >= with_loss[0]):
            with_loss = one
    if with_loss is not None and with_loss is not last:
        yield with_loss
    if last is not None:
        yield last
