"""The heartbeat table: one page of memory per node, shared by the node's agent and its workers.

The agent writes the request (preempt, stop) and workers write heartbeats. Workers read the request
between steps without signal handlers, files on a shared disk or system calls. The page is an
anonymous memory file that workers open through the agent's `/proc` entry, which only the same user
may; it vanishes with its last process, however that ends.

Layout, native byte order, every field 8 bytes and aligned, so that each is read and written whole:
0 request; 8 deadline of the request (CLOCK_MONOTONIC seconds); then, from byte 64, one row of 64
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
    """The request of the agent to its workers."""

    NONE = 0
    PREEMPT = 1
    """Save and leave; another generation follows."""
    STOP = 2
    """Save and leave for good."""


class WorkerPhase(IntEnum):
    """The phase of a worker."""

    STARTING = 0
    TRAINING = 1
    DONE = 2
    """Reached the last step; everything is saved."""
    LEFT = 3
    """Left on request; everything is saved."""
    FAILED = 4
    """Failed; another attempt may succeed."""
    REFUSED = 5
    """Failed; no further attempt can help."""
    RESUMED = 6
    """Has its state, and has finished no step since."""
    SAVING = 7
    """Saving, or after the last step waiting until all is saved; takes as long as the store
    does."""
    VALIDATING = 8
    """Validating between two steps, for as long as there are samples."""


@dataclass(frozen=True)
class Heartbeat:
    """The last heartbeat of a worker."""

    pid: int
    phase: WorkerPhase
    step: int
    """Number of finished steps."""
    beat: float
    """CLOCK_MONOTONIC seconds of the last heartbeat; 0 before the first."""
    attempt: int
    """Restarts of the worker in this generation."""
    memory: int = 0
    """Recent peak of its memory in bytes, on its GPU if it has one; 0: not known yet."""


class HeartbeatTable:
    """The heartbeat table of one node with `ranks` local ranks."""

    def __init__(self, handle: int, ranks: int) -> None:
        self._ranks = ranks
        self._map = mmap.mmap(handle, _size(ranks))

    @classmethod
    def create(cls, ranks: int) -> tuple[HeartbeatTable, str]:
        """Creates a table; returns it and the path by which this node's workers attach to it."""
        handle = os.memfd_create("hpckit-board", os.MFD_CLOEXEC)
        os.fchmod(handle, 0o600)  # only workers of this user
        os.ftruncate(handle, _size(ranks))
        return cls(handle, ranks), f"/proc/{os.getpid()}/fd/{handle}"

    @classmethod
    def attach(cls, path: str, ranks: int) -> HeartbeatTable:
        """Opens the table at `path`, as returned by `create`.

        Raises:
            OSError: its agent is gone, or belongs to another user.
        """
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(handle, ranks)
        finally:
            os.close(handle)

    def ask(self, request: WorkerRequest, within_s: float) -> None:
        """Sets the request to all workers of the node; a later request replaces an earlier one."""
        struct.pack_into("=d", self._map, 8, time.monotonic() + within_s)
        struct.pack_into("=q", self._map, 0, request)

    def request(self) -> WorkerRequest:
        """Returns the present request to the workers."""
        return WorkerRequest(struct.unpack_from("=q", self._map, 0)[0])

    def seconds_left(self) -> float:
        """Returns the seconds until the deadline of the request, negative after it."""
        deadline: float = struct.unpack_from("=d", self._map, 8)[0]
        return deadline - time.monotonic()

    def report(self, rank: int, phase: WorkerPhase, step: int, attempt: int) -> None:
        """Writes a heartbeat of the worker with local rank `rank`."""
        slot = (os.getpid(), phase, step, time.monotonic(), attempt)
        _BEAT.pack_into(self._map, _HEADER + rank * _SLOT.size, *slot)

    def note_memory(self, rank: int, most_bytes: int) -> None:
        """Writes the recent peak of memory of the worker with local rank `rank`."""
        _MEMORY.pack_into(self._map, _HEADER + rank * _SLOT.size + _BEAT.size, most_bytes)

    def slots(self) -> list[Heartbeat]:
        """Returns the last heartbeats by local rank."""
        found = []
        for rank in range(self._ranks):
            pid, phase, *others = _SLOT.unpack_from(self._map, _HEADER + rank * _SLOT.size)
            found.append(Heartbeat(pid, WorkerPhase(phase), *others))
        return found


def _size(ranks: int) -> int:
    return _HEADER + ranks * _SLOT.size
