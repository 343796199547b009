"""Parses the text of stacks as Python's faulthandler and py-spy write it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hpckit.hangs.hang_snapshot import StackFrame

_THREAD = re.compile(r"^(?:Current thread|Thread) ")
_FAULTHANDLER = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_PY_SPY = re.compile(r"^    (?P<name>.*) \((?P<file>[^()]*):(?P<line>\d+)\)$")
_OF_THREADS = ("_bootstrap", "_bootstrap (threading.py)")
"""The outermost function of a thread that Python's `threading` has started."""


def parse_threads(text: str) -> list[tuple[StackFrame, ...]]:
    """Returns the stacks of the threads in `text`, in its order, each innermost frame first. Lines
    of another form are skipped."""
    threads: list[list[StackFrame]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (found := _FAULTHANDLER.match(line) or _PY_SPY.match(line)):
            threads[-1].append(StackFrame(found["file"], int(found["line"]), found["name"]))
    return [tuple(frames) for frames in threads if frames]


def main_stack(text: str) -> tuple[StackFrame, ...]:
    """Returns the stack of the main thread in `text`; empty if there is none.

    py-spy names that thread. faulthandler lists the oldest thread last, and the main thread was not
    started by `threading`.
    """
    if '"MainThread"' in text:
        after = text.partition('"MainThread"')[2].partition("\n")[2]
        found = parse_threads(f"Thread main\n{after}")
        return found[0] if found else ()
    threads = [frames for frames in parse_threads(text) if frames[-1].function not in _OF_THREADS]
    return threads[-1] if threads else ()


def render_threads(threads: Iterable[tuple[str, Sequence[StackFrame]]]) -> str:
    """Returns the text of stacks, by the name of their threads, in the form of faulthandler."""
    lines = []
    for name, frames in threads:
        lines.append(f"Thread {name} (most recent call first):")
        lines += [f'  File "{one.file}", line {one.line} in {one.function}' for one in frames]
        lines.append("")
    return "\n".join(lines)
