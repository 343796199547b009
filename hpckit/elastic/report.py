"""What a node agent leaves behind when its generation is over."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hpckit.run.durable import read_json, write_json

HANG = "Hang"
"""Type of the error of a worker that finished no step."""


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
    """The first error of a worker."""

    rank: int
    type: str
    message: str
    traceback: str
    time: float
    """Seconds since the epoch."""

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.type}: {self.message}"


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
        error=WorkerError(**error) if error else None,
    )


def write_hang(folder: Path, step: int, stacks: Sequence[Path]) -> None:
    """Leave a hang where `first_error` finds it, as the error of the first of these ranks."""
    rank = min((int(digits) for path in stacks if (digits := path.stem[4:]).isdigit()), default=0)
    error = WorkerError(
        rank,
        HANG,
        f"no step was finished after step {step}; stacks: {', '.join(map(str, stacks)) or 'none'}",
        "",
        time.time(),
    )
    write_json(folder / f"rank{rank}.hang{step}.error.json", asdict(error))


def first_error(folder: Path) -> WorkerError | None:
    """The earliest error that the workers with logs in `folder` wrote down; None if none did.

    The earliest is the cause: what comes after it on other ranks is mostly a lost connection.
    """
    found = [WorkerError(**read_json(path)) for path in folder.glob("rank*.error.json")]
    return min(found, key=lambda error: error.time, default=None)
