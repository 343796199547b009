"""Steps and metrics of a program that are read from the lines of its output."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

from hpckit.ipc.program_session import ProgramSession

_POLL_S = 0.5


def parse_line(line: str, pattern: re.Pattern[str]) -> tuple[int, dict[str, float]] | None:
    """Returns the step and the metrics in a line of output, or None if it reports no step.

    Groups of `pattern` that hold no number are left out.
    """
    match = pattern.search(line)
    if match is None:
        return None
    groups = {name: _number(text) for name, text in match.groupdict().items()}
    found = {name: number for name, number in groups.items() if number is not None}
    step = found.pop("step", None)
    return None if step is None else (int(step), found)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None


class OutputFollower(threading.Thread):
    """Reads the log of rank 0 as it is written, and records the steps in it."""

    def __init__(self, log: Path, pattern: str) -> None:
        super().__init__(name="output follower", daemon=True)
        self._log, self._pattern = log, re.compile(pattern)
        self._offset = log.stat().st_size if log.exists() else 0
        self._rest = b""
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
        for line in self._new_lines():
            if (found := parse_line(line, self._pattern)) is not None:
                self._session.report_output(*found)

    def _new_lines(self) -> Iterator[str]:
        with open(self._log, "rb") as file:
            file.seek(self._offset)
            data = self._rest + file.read()
            self._offset = file.tell()
        *lines, self._rest = re.split(rb"[\r\n]+", data)
        yield from (line.decode(errors="replace") for line in lines)
