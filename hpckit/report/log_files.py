"""The log files of a run: selects one, reads its last lines, and follows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hpckit.rundir.directory import RunDir

_CHUNK = 1 << 16
SCREEN_BYTES = 1 << 20
"""Bytes at the end of a log that are read for a screen or a page."""
_RANK = re.compile(r"rank(\d+)\.log")


@dataclass(frozen=True)
class LogSelection:
    """The log that the user has selected; without any field, the supervisor's."""

    rank: int | None = None
    node: int | None = None
    generation: int | None = None


def find_log(run: RunDir, wanted: LogSelection) -> Path | None:
    """Return the log file: that of the newest generation that has it, if none is named. None: it
    does not exist yet.

    A rank has a log of its own. For a node it is the agent's log, or, with a generation,
    torchrun's. A generation alone means its first rank.
    """
    if wanted == LogSelection():
        return _if_there(run.logs / "supervisor.log")
    if wanted.node is not None and wanted.rank is None:
        if wanted.generation is None:
            return _if_there(run.agent_log(wanted.node))
        return _if_there(run.node_logs(wanted.generation, wanted.node) / "torchrun.log")
    rank, nodes = wanted.rank or 0, "*" if wanted.node is None else str(wanted.node)
    numbers = run.generation_numbers() if wanted.generation is None else [wanted.generation]
    for number in reversed(numbers):
        folder = run.generation_logs(number)
        if found := sorted(folder.glob(f"n{nodes}/rank{rank}.log")):
            return found[-1]
    return None


def describe_logs(run: RunDir) -> str:
    """Describe the existing logs, for a user who has asked for another one."""
    numbers = run.generation_numbers()
    if not numbers:
        return "no generation has begun"
    newest = run.generation_logs(numbers[-1])
    ranks = sorted(int(m[1]) for f in newest.glob("n*/*") if (m := _RANK.fullmatch(f.name)))
    nodes = sorted(int(f.name[1:]) for f in newest.glob("n*") if f.name[1:].isdigit())
    parts = f"nodes {_listing(nodes)} and ranks {_listing(ranks)}"
    if len(numbers) == 1:
        return f"the run has generation {numbers[0]} alone, with {parts}"
    return f"the run has generations {numbers[0]} to {numbers[-1]}; the newest has {parts}"


def last_lines(path: Path, most: int) -> tuple[list[str], int]:
    """Return the last lines of the file, at most so many (0: all), and the offset after them.

    A last line that is incomplete is left for the next read.
    """
    with open(path, "rb") as file:
        return _last_lines_of(file, most, 0)


def lines_for_screen(file: BinaryIO, most: int) -> list[str]:
    """Return the last lines of an open file, at most so many and of its last `SCREEN_BYTES`: a
    progress bar may have written gigabytes without a line break."""
    end = file.seek(0, 2)
    return _last_lines_of(file, most, max(0, end - SCREEN_BYTES))[0]


def _last_lines_of(file: BinaryIO, most: int, least: int) -> tuple[list[str], int]:
    """As `last_lines`, of what stands from the offset `least` on."""
    end = start = file.seek(0, 2)
    parts, breaks = list[bytes](), 0
    while start > least and (not most or breaks <= most):
        step = min(_CHUNK, start - least)
        start -= step
        file.seek(start)
        parts.append(file.read(step))
        breaks += parts[-1].count(b"\n")
    data = b"".join(reversed(parts))
    whole, newline, _ = data.rpartition(b"\n")
    lines = whole.decode(errors="replace").split("\n") if newline else []
    return lines[-most:] if most else lines, end - len(data) + len(whole) + len(newline)


@dataclass(frozen=True)
class AddedLogLine:
    """A line that was added, with the file if it is the first line of another one."""

    line: str
    begins: Path | None = None


def follow(
    find: Callable[[], Path | None], path: Path | None, offset: int, is_over: Callable[[], bool]
) -> Iterator[AddedLogLine | None]:
    """Yield lines as they are added, from `offset` of `path` on, then from whatever file is the
    selected one; None if nothing was added, so that the caller waits. Ends when the run is over."""
    while True:
        over = is_over()
        has_more = False
        newer = find()
        if path is not None:
            lines, offset = _read_on(path, offset)
            has_more = bool(lines)
            yield from (AddedLogLine(line) for line in lines)
        if newer is not None and newer != path:
            path, offset, has_more = newer, 0, True
            yield AddedLogLine("", begins=newer)
        if not has_more:
            if over:
                return
            yield None


def _read_on(path: Path, offset: int) -> tuple[list[str], int]:
    with open(path, "rb") as file:
        file.seek(offset)
        whole, newline, _ = file.read().rpartition(b"\n")
    lines = whole.decode(errors="replace").split("\n") if newline else []
    return lines, offset + len(whole) + len(newline)


def _if_there(path: Path) -> Path | None:
    return path if path.is_file() else None


def _listing(numbers: list[int]) -> str:
    if not numbers:
        return "(none)"
    is_range = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2
    return f"{numbers[0]} to {numbers[-1]}" if is_range else ", ".join(map(str, numbers))
