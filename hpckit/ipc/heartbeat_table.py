"""The board: one page of memory per node, shared by the node agent and its workers.

Down goes the request (preempt, stop), up come the workers' heartbeats. Workers look at it between
steps: no signal handler, no file on a shared disk, no system call. The page is an anonymous memory
file that workers open through the agent's `/proc` entry, which only the same user may; it is gone
with its last process, however that ends.

Layout, native byte order, every field 8 bytes and aligned, so each is read and written whole:
0 request; 8 deadline of the request (CLOCK_MONOTONIC seconds); then, from byte 64, one slot of 64
bytes per local rank: pid, phase, step, time of the heartbeat, attempt, peak of memory.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum

_HEADER = 64
_SLOT = struct.Struct("=qqqdqq16x")
_BEAT = struct.Struct("=qqqdq")
_MEMORY = struct.Struct("=q")


class WorkerRequest(IntEnum):
    """What the agent asks of its workers."""

    NONE = 0
    PREEMPT = 1
    """Save and leave; another generation goes on."""
    STOP = 2
    """Save and leave for good."""


class WorkerPhase(IntEnum):
    """How far a worker is."""

    STARTING = 0
    TRAINING = 1
    DONE = 2
    """Reached its last step; everything is saved."""
    LEFT = 3
    """Left on request; everything is saved."""
    FAILED = 4
    """Failed in a way that another attempt may mend."""
    REFUSED = 5
    """Failed in a way that no further attempt can mend."""
    RESUMED = 6
    """Has its state, and finished no step since."""
    SAVING = 7
    """Saving, or through with its steps and waiting until all is saved: as slow as the store."""
    VALIDATING = 8
    """Between two steps, for as long as there are samples."""


@dataclass(frozen=True)
class Heartbeat:
    """What one worker last said."""

    pid: int
    phase: WorkerPhase
    step: int
    """Steps finished."""
    beat: float
    """CLOCK_MONOTONIC seconds of the last heartbeat; 0 before the first."""
    attempt: int
    """Restarts of the worker in this generation."""
    memory: int = 0
    """The most bytes that it took lately, on its GPU if it has one; 0: not said yet."""


class HeartbeatTable:
    """The page of one node with `ranks` local ranks."""

    def __init__(self, handle: int, ranks: int) -> None:
        self._ranks = ranks
        self._map = mmap.mmap(handle, _size(ranks))

    @classmethod
    def create(cls, ranks: int) -> tuple[HeartbeatTable, str]:
        """A new board, and the path under which this node's workers can attach to it."""
        handle = os.memfd_create("hpckit-board", os.MFD_CLOEXEC)
        os.fchmod(handle, 0o600)  # for workers of this user alone
        os.ftruncate(handle, _size(ranks))
        return cls(handle, ranks), f"/proc/{os.getpid()}/fd/{handle}"

    @classmethod
    def attach(cls, path: str, ranks: int) -> HeartbeatTable:
        """The board at `path`, as `create` named it.

        Raises:
            OSError: its agent is gone, or belongs to another user.
        """
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(handle, ranks)
        finally:
            os.close(handle)

    def ask(self, request: WorkerRequest, within_s: float) -> None:
        """Ask all workers of the node; a later request replaces an earlier one."""
        struct.pack_into("=d", self._map, 8, time.monotonic() + within_s)
        struct.pack_into("=q", self._map, 0, request)

    def request(self) -> WorkerRequest:
        """What is asked of the workers now."""
        return WorkerRequest(struct.unpack_from("=q", self._map, 0)[0])

    def seconds_left(self) -> float:
        """Seconds until the deadline of the request; negative after it."""
        deadline: float = struct.unpack_from("=d", self._map, 8)[0]
        return deadline - time.monotonic()

    def report(self, rank: int, phase: WorkerPhase, step: int, attempt: int) -> None:
        """Heartbeat of the worker with local rank `rank`."""
        slot = (os.getpid(), phase, step, time.monotonic(), attempt)
        _BEAT.pack_into(self._map, _HEADER + rank * _SLOT.size, *slot)

    def note_memory(self, rank: int, most_bytes: int) -> None:
        """The most that the worker with local rank `rank` took lately."""
        _MEMORY.pack_into(self._map, _HEADER + rank * _SLOT.size + _BEAT.size, most_bytes)

    def slots(self) -> list[Heartbeat]:
        """The last report of each local rank, in their order."""
        found = []
        for rank in range(self._ranks):
            pid, phase, *others = _SLOT.unpack_from(self._map, _HEADER + rank * _SLOT.size)
            found.append(Heartbeat(pid, WorkerPhase(phase), *others))
        return found


def _size(ranks: int) -> int:
    return _HEADER + ranks * _SLOT.size
