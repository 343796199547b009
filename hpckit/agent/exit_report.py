"""The report that an agent sends and writes when a generation has ended on its node."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from checkpointing.errors import OtherRankError
from hpckit.ipc.heartbeat_table import WorkerPhase
from hpckit.ipc.memory_kinds import MemoryKind
from hpckit.system.atomic_files import read_json, write_json
from hpckit.text.error_words import error_words

HANG = "Hang"
"""Error type of a worker that hung."""
FAULTY_NODE = "FaultyNodeError"
"""Error type of a worker whose node, or a peer's, computes wrongly: another generation, with other
nodes, is needed."""
_RANK = re.compile(r"rank \d+: ")
"""The beginning of the message of an `OtherRankError` that describes the error of that rank."""
_ATTEMPT = re.compile(r"\.attempt(\d+)\.")


class NodeExit(StrEnum):
    """How the workers of one node ended."""

    DONE = "done"
    """Every worker reached the last step."""
    LEFT = "left"
    """Every worker saved and left on request."""
    OVERDUE = "overdue"
    """They were asked to leave and were killed at the deadline."""
    FAILED = "failed"
    """They failed more often than they may be restarted in place."""
    REFUSED = "refused"
    """A worker reported that no further attempt can help."""
    STOPPED = "stopped"
    """They were killed because another node's part of the job ended."""


@dataclass(frozen=True)
class WorkerError:
    """The first error of a worker, or of the torchrun that was to start it."""

    rank: int | None
    """None: the error was not written by a worker."""
    type: str
    message: str
    traceback: str
    time: float
    """Seconds since the epoch."""
    memory: MemoryKind | None = None
    """The kind of memory that ran out by this error, if any."""
    pid: int = 0
    """Process that raised it; 0: unknown, as in reports written before this field existed."""
    is_passing: bool = False
    """Whether another attempt may not meet the error, such as an error of a network or a store."""
    file: str = ""
    """The log from which the error was read; empty: its worker wrote it."""
    where: str = ""
    """Whose error it is, if it has no rank."""
    is_before_step: bool = False
    """Whether its worker had finished no step in this attempt."""
    step: int | None = None
    """Number of finished steps when it was raised; None: unknown."""

    def __str__(self) -> str:
        who = self.where if self.rank is None else f"rank {self.rank}"
        text = f"{who}: {self.type}: {self.message}" if self.message else f"{who}: {self.type}"
        return f"{text} ({self.file})" if self.file else text

    @property
    def words(self) -> str:
        """The type and message with numbers (addresses, processes, times) replaced, which are equal
        if another attempt fails with the same error."""
        return error_words(self.type, self.message)


@dataclass(frozen=True)
class ExitReport:
    """How a generation ended on one node."""

    node: int
    exit: NodeExit
    step: int
    """Steps that every worker of the node had finished."""
    attempts: int
    """Number of restarts in place."""
    error: WorkerError | None
    """The first error of the last attempt."""
    is_oom_killed: bool = False
    """Whether the kernel killed a process of the last attempt because memory ran out."""
    is_repeated: bool = False
    """Whether the previous attempt ended with the same `words`."""
    repeats: int = 0
    """Number of attempts of this generation, up to the last one, that ended with the same error at
    the same place and step; see `hpckit.agent.error_repetition`."""

    def write(self, path: Path) -> None:
        """Writes the report for people to read; the supervisor receives it as a message."""
        write_json(path, asdict(self))


def load_report(values: Mapping[str, Any]) -> ExitReport:
    """Inverts `dataclasses.asdict`."""
    error = values["error"]
    return ExitReport(
        node=values["node"],
        exit=NodeExit(values["exit"]),
        step=values["step"],
        attempts=values["attempts"],
        error=load_error(error) if error else None,
        is_oom_killed=values.get("is_oom_killed", False),
        is_repeated=values.get("is_repeated", False),
        repeats=values.get("repeats", 0),
    )


def load_error(values: Mapping[str, Any]) -> WorkerError:
    """Inverts `dataclasses.asdict`."""
    memory = values.get("memory")
    return WorkerError(**{**values, "memory": MemoryKind(memory) if memory else None})


_HANGS = {
    WorkerPhase.STARTING: "the start (model, restore) was not complete",
    WorkerPhase.SAVING: "a save was not complete",
    WorkerPhase.VALIDATING: "no validation batch arrived",
    WorkerPhase.RUNNING: "the program wrote no step in time",
}


def write_hang(
    folder: Path,
    step: int,
    attempt: int,
    stacks: Sequence[Path],
    phase: WorkerPhase = WorkerPhase.TRAINING,
    explanation: str | None = None,
) -> None:
    """Writes a hang where `first_error` finds it, as an error of the lowest of these ranks.

    Args:
        explanation: what the hang comes from; None: it is unknown.
    """
    what = _HANGS.get(phase, "no step was finished")
    rank = min((int(digits) for path in stacks if (digits := path.stem[4:]).isdigit()), default=0)
    error = WorkerError(
        rank,
        HANG,
        f"{what} after step {step}{f': {explanation}' if explanation else ''}; "
        f"stacks: {', '.join(map(str, stacks)) or 'none'}",
        "",
        time.time(),
    )
    write_json(folder / f"rank{rank}.attempt{attempt}.hang{step}.error.json", asdict(error))


def errors_in(folder: Path, attempt: int | None = None) -> list[WorkerError]:
    """Returns the errors that workers with logs in `folder` wrote, of all attempts or of one."""
    paths = [path for path in folder.glob("rank*.error.json") if attempt in (None, _attempt(path))]
    return [load_error(values) for path in paths if (values := read_json(path)) is not None]


def first_error(folder: Path, attempt: int | None = None) -> WorkerError | None:
    """Returns the earliest error of an attempt, or None.

    The earliest error is the cause: later errors of other ranks are mostly lost connections. See
    `order_of`.

    Args:
        folder: the folder with the logs of the workers.
        attempt: None: the last attempt with an error.
    """
    if attempt is None:
        attempt = max(map(_attempt, folder.glob("rank*.error.json")), default=0)
    return min(errors_in(folder, attempt), key=order_of, default=None)


def order_of(error: WorkerError) -> tuple[bool, float]:
    """Returns the key that sorts the errors of an attempt, the cause first: by time, but an error
    that describes one of another rank, which was raised at the same moment, after all others."""
    is_description = error.type == OtherRankError.__name__ and _RANK.match(error.message)
    return bool(is_description), error.time


def _attempt(path: Path) -> int:
    match = _ATTEMPT.search(path.name)
    return int(match[1]) if match else 0
