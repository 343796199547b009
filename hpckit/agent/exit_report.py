"""What a node agent leaves behind when its generation is over."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hpckit.ipc.heartbeat_table import WorkerPhase
from hpckit.ipc.memory_kinds import MemoryKind
from hpckit.system.atomic_files import read_json, write_json

HANG = "Hang"
"""Type of the error of a worker that finished no step."""
_ATTEMPT = re.compile(r"\.attempt(\d+)\.")


class NodeExit(StrEnum):
    """How the workers of one node ended."""

    DONE = "done"
    """Every one reached the last step."""
    LEFT = "left"
    """Every one saved and left on request."""
    OVERDUE = "overdue"
    """Asked to leave, and killed at the deadline."""
    FAILED = "failed"
    """Failed more often than they may be restarted in place."""
    REFUSED = "refused"
    """One said that no further attempt can help."""
    STOPPED = "stopped"
    """Killed because another node's part of the job ended."""


@dataclass(frozen=True)
class WorkerError:
    """The first error of a worker, or of the torchrun that was to start it."""

    rank: int | None
    """None: not of a worker that has come to say so itself."""
    type: str
    message: str
    traceback: str
    time: float
    """Seconds since the epoch."""
    memory: MemoryKind | None = None
    """That it says has run out."""
    pid: int = 0
    """0: not said, as by a generation before there was this field."""
    is_passing: bool = False
    """Whether another attempt may not meet it, as of a network or a store."""
    file: str = ""
    """The log that it was read from; empty: it was written down by its worker."""
    where: str = ""
    """Whose it is, where that is no rank."""

    def __str__(self) -> str:
        who = self.where if self.rank is None else f"rank {self.rank}"
        told = f"{who}: {self.type}: {self.message}" if self.message else f"{who}: {self.type}"
        return f"{told} ({self.file})" if self.file else told

    @property
    def words(self) -> str:
        """What another attempt that fails of the same says, too: without numbers, of which
        addresses, processes and times are."""
        return re.sub(r"(0x[0-9a-f]+|\d+)", "#", f"{self.type}: {self.message}")


@dataclass(frozen=True)
class ExitReport:
    """One node's part in the end of a generation."""

    node: int
    exit: NodeExit
    step: int
    """Steps that every worker of the node had finished."""
    attempts: int
    """Restarts in place."""
    error: WorkerError | None
    """The first one of the last attempt."""
    is_oom_killed: bool = False
    """Whether the kernel ended the last attempt for want of memory."""
    is_repeated: bool = False
    """Whether the attempt before ended of the same, in the same words."""

    def write(self, path: Path) -> None:
        """For people: the supervisor is sent it."""
        write_json(path, asdict(self))


def load_report(values: Mapping[str, Any]) -> ExitReport:
    """The inverse of `dataclasses.asdict`."""
    error = values["error"]
    return ExitReport(
        node=values["node"],
        exit=NodeExit(values["exit"]),
        step=values["step"],
        attempts=values["attempts"],
        error=load_error(error) if error else None,
        is_oom_killed=values.get("is_oom_killed", False),
        is_repeated=values.get("is_repeated", False),
    )


def load_error(values: Mapping[str, Any]) -> WorkerError:
    """The inverse of `dataclasses.asdict`."""
    memory = values.get("memory")
    return WorkerError(**{**values, "memory": MemoryKind(memory) if memory else None})


_HANGS = {
    WorkerPhase.STARTING: "it was not through with its start (model, restore)",
    WorkerPhase.SAVING: "it was not through with a save",
    WorkerPhase.VALIDATING: "no batch of the validation came",
}


def write_hang(
    folder: Path,
    step: int,
    attempt: int,
    stacks: Sequence[Path],
    phase: WorkerPhase = WorkerPhase.TRAINING,
) -> None:
    """Leave a hang where `first_error` finds it, as the error of the first of these ranks."""
    what = _HANGS.get(phase, "no step was finished")
    rank = min((int(digits) for path in stacks if (digits := path.stem[4:]).isdigit()), default=0)
    error = WorkerError(
        rank,
        HANG,
        f"{what} after step {step}; stacks: {', '.join(map(str, stacks)) or 'none'}",
        "",
        time.time(),
    )
    write_json(folder / f"rank{rank}.attempt{attempt}.hang{step}.error.json", asdict(error))


def errors_in(folder: Path, attempt: int | None = None) -> list[WorkerError]:
    """What the workers with logs in `folder` wrote down, in all attempts or in this one."""
    paths = [path for path in folder.glob("rank*.error.json") if attempt in (None, _attempt(path))]
    return [load_error(values) for path in paths if (values := read_json(path)) is not None]


def first_error(folder: Path, attempt: int | None = None) -> WorkerError | None:
    """The earliest error of an attempt; None if there is none.

    The earliest is the cause: what comes after it on other ranks is mostly a lost connection.

    Args:
        folder: with the logs of the workers.
        attempt: None: the last one that has left an error.
    """
    if attempt is None:
        attempt = max(map(_attempt, folder.glob("rank*.error.json")), default=0)
    return min(errors_in(folder, attempt), key=lambda error: error.time, default=None)


def _attempt(path: Path) -> int:
    match = _ATTEMPT.search(path.name)
    return int(match[1]) if match else 0
