"""Steps and metrics of a program in the lines of its output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


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


class OutputLines:
    """The lines that are appended to the log of a rank.

    Args:
        log: the log, of which earlier lines are left out.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = log.stat().st_size if log.exists() else 0
        self._rest = b""

    @property
    def offset(self) -> int:
        """Offset in the log up to which it was read."""
        return self._offset

    def read(self) -> Iterator[str]:
        """Yields the complete lines since the last call."""
        with open(self._log, "rb") as file:
            file.seek(self._offset)
            data = self._rest + file.read()
            self._offset = file.tell()
        *lines, self._rest = re.split(rb"[\r\n]+", data)
        yield from (line.decode(errors="replace") for line in lines)
