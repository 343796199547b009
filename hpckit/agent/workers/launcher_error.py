"""The error of a torchrun, or of a worker that ended before it could write its own error.

A worker that reaches hpckit's own code writes its error to a file
(`hpckit.agent.exit_report.first_error`). An earlier error (an import, torchrun's arguments, the
rendezvous, a crash in C code) is only in what torchrun has written: `torchrun.log`, and the
`error.json` of a forked worker.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpckit.agent.exit_report import WorkerError
from hpckit.system.atomic_files import read_json

LOG = "torchrun.log"
_MAX_LOG_BYTES = 1 << 20
"""Bytes read from the end of a log."""
_MAX_CHARACTERS = 1000
"""Longest message in characters."""
# The prefix of torch's loggers: severity and date, time, thread, file and line.
_PREFIX = re.compile(r"^[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ \S+\] ?", re.MULTILINE)
_BEGIN = "Traceback (most recent call last):"
_RAISED = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?")
_USAGE = re.compile(r"^\S+: error: (.*)$", re.MULTILINE)
_EXIT = re.compile(r"^failed \(exitcode: (-?\d+)\) local_rank: (\d+) ", re.MULTILINE)
_WRAPPERS = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException")
"""Exceptions by which torchrun reports a failed worker; the cause is reported elsewhere."""
_KILLED = (signal.SIGKILL, signal.SIGTERM)
"""Signals from other processes, which are no error of the worker."""
_TRANSIENT = re.compile(
    r"(?:OSError|IOError|BlockingIOError|\w*Connection\w*Error|\w*Timeout\w*|Dist\w*Error"
    r"|Rendezvous\w*Error|SaveError|StoreError|ServiceError)$"
)
"""Types of errors that another attempt may not meet: those of networks, disks and stores."""


@dataclass(frozen=True)
class LoggedError:
    """An error as a log reports it."""

    type: str
    message: str
    traceback: str = ""

    @property
    def is_passing(self) -> bool:
        """Whether another attempt may not meet the error."""
        return _TRANSIENT.match(self.type.rpartition(".")[2]) is not None


def launcher_error(folder: Path) -> WorkerError | None:
    """Returns the last error in what a node's torchrun left in `folder`, or None.

    If another process killed the workers, that is no error of theirs.
    """
    path, found, rank = folder / LOG, None, None
    for path, local_rank in _error_files(folder):
        if (found := _file_error(path)) is not None:
            rank = local_rank
            break
    if found is None:
        path = folder / LOG
        found = last_error(_end_of(path))
    if found is None:
        return None
    where = "torchrun" if rank is None else f"local rank {rank}"
    return WorkerError(
        None,
        found.type,
        found.message[:_MAX_CHARACTERS],
        found.traceback,
        time.time(),
        file=str(path),
        where=where,
        is_passing=found.is_passing,
    )


def last_error(text: str) -> LoggedError | None:
    """Returns the last error in a torchrun's log, by the first of these sources that has one: the
    last traceback that is not torchrun's report of a failed worker, wrong arguments, the exit of a
    worker's process, the last line."""
    plain = _PREFIX.sub("", text)
    if raised := list(_raised(plain.splitlines())):
        return raised[-1]
    if usage := _USAGE.findall(plain):
        return LoggedError("ArgumentError", usage[-1])
    exits = _EXIT.findall(plain)
    if exits:
        return _exit_error(int(exits[-1][0]), int(exits[-1][1]), text)
    lines = plain.split()
    return LoggedError("Error", plain.strip().splitlines()[-1].strip()) if lines else None


def _raised(lines: list[str]) -> Iterator[LoggedError]:
    """Yields the exceptions of all tracebacks in their order."""
    for number, line in enumerate(lines):
        if line != _BEGIN:
            continue
        for end in range(number + 1, len(lines)):
            if lines[end] == _BEGIN:  # another process's, interleaved
                break
            if not lines[end] or lines[end][0].isspace():
                continue
            raised = _RAISED.fullmatch(lines[end])
            if raised and raised[1].rpartition(".")[2] not in _WRAPPERS:
                block = "\n".join(lines[number : end + 1])
                yield LoggedError(raised[1], raised[2] or "", block)
            break


def _exit_error(status: int, local_rank: int, text: str) -> LoggedError | None:
    who = f"the process of local rank {local_rank}"
    if status < 0:
        name = signal.Signals(-status).name
        if -status in _KILLED:
            return None
        return LoggedError(name, f"{who} was ended by {name}; its own log may say more")
    before = text.partition("failed (exitcode")[0].splitlines()[:-1]
    printed = [line.strip() for line in before if line.strip() and not _PREFIX.match(line)]
    last = f"; it printed: {printed[-1]}" if printed else ""
    return LoggedError("SystemExit", f"{who} ended with status {status}{last}")


def _error_files(folder: Path) -> list[tuple[Path, int]]:
    """Returns torch's error files of the last attempt's forked workers, with their local ranks."""
    found = [
        (path, int(path.parent.name))
        for path in folder.glob("torchrun/*/attempt_*/*/error.json")
        if path.parent.name.isdigit()
    ]
    last = max((_attempt(path) for path, _ in found), default=0)
    return sorted(one for one in found if _attempt(one[0]) == last)


def _attempt(path: Path) -> int:
    number = path.parent.parent.name.rpartition("_")[2]
    return int(number) if number.isdigit() else 0


def _file_error(path: Path) -> LoggedError | None:
    """Parses a file that torch.distributed.elastic.multiprocessing.errors wrote."""
    values = read_json(path)
    message = values.get("message") if isinstance(values, dict) else None
    if isinstance(message, str):
        return LoggedError("Error", message)
    if not isinstance(message, dict):
        return None
    kind, _, text = str(message.get("message", "")).partition(": ")
    extra = message.get("extraInfo")
    stack = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
    return LoggedError(kind, text.splitlines()[0] if text else "", stack.rstrip())


def _end_of(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _MAX_LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
