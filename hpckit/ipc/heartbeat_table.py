"""The heartbeat table: one page of memory per node, shared by the node's agent and its workers.

The agent writes the request (preempt, stop), and workers write heartbeats. Workers read the request
between steps without signal handlers, files on a shared disk or system calls. The page is an
anonymous memory file, which workers open through the agent's `/proc` entry. Only the same user may
do so. The page vanishes with the last process that has it open, however that process ends.

Byte 0 holds the request, byte 8 its deadline (CLOCK_MONOTONIC seconds), and byte 16 the number of
attempts whose first worker has started. From byte 64 on there
is a row of 64 bytes for each local rank: pid, phase, step, time of the heartbeat, attempt, peak
memory, and the deadline of a program. The byte order is native. Every field has 8 bytes and is
aligned, and is read and written as a whole, through a view of the page: `struct.pack_into` sets all
bytes to zero first, so that a reader could take a rank for one that hangs.
"""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass
from enum import IntEnum

_WORD = 8  # bytes of a field; below are numbers of fields
_REQUEST, _REQUEST_DEADLINE, _ATTEMPTS = range(3)
_HEADER = _ROW = 8
_PID, _PHASE, _STEP, _BEAT, _ATTEMPT, _MEMORY, _DEADLINE = range(7)


class WorkerRequest(IntEnum):
    """The request of the agent to its workers."""

    NONE = 0
    PREEMPT = 1
    """Workers save and leave; another generation follows."""
    STOP = 2
    """Workers save and leave; no other generation follows."""


class WorkerPhase(IntEnum):
    """The phase that a worker is in."""

    STARTING = 0
    TRAINING = 1
    DONE = 2
    """The worker has reached the last step, and everything is saved."""
    LEFT = 3
    """The worker has left on request, and everything is saved."""
    FAILED = 4
    """The worker has failed; another attempt may succeed."""
    REFUSED = 5
    """The worker has failed; another attempt would fail in the same way."""
    RESUMED = 6
    """The worker has restored or initialized its state, and has finished no step since."""
    SAVING = 7
    """The worker saves, or waits after the last step until everything is saved; the store decides
    how long this takes."""
    VALIDATING = 8
    """The worker validates between two steps, for as long as there are samples."""
    RUNNING = 9
    """The worker executes a program that has reported no step."""
    REPLACED = 10
    """The program has put another one in its place (execve(2)), which reports no end: the exit
    status of the process alone says how it ended."""


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
    """Number of restarts of the worker in this generation."""
    memory: int = 0
    """Recent peak of the worker's memory in bytes, on its GPU if it has one; 0: it is not known
    yet."""
    deadline: float = 0.0
    """CLOCK_MONOTONIC seconds at which a program in the phase RUNNING counts as hung; 0: it does
    not."""


class HeartbeatTable:
    """The heartbeat table of one node with `ranks` local ranks."""

    def __init__(self, handle: int, ranks: int) -> None:
        self._ranks = ranks
        page = memoryview(mmap.mmap(handle, _size(ranks)))
        self._integers, self._seconds = page.cast("q"), page.cast("d")

    @classmethod
    def create(cls, ranks: int) -> tuple[HeartbeatTable, str]:
        """Creates a table, and returns it with the path by which workers of this node attach to
        it."""
        handle = os.memfd_create("hpckit-board", os.MFD_CLOEXEC)
        os.fchmod(handle, 0o600)  # only workers of this user
        os.ftruncate(handle, _size(ranks))
        return cls(handle, ranks), f"/proc/{os.getpid()}/fd/{handle}"

    @classmethod
    def attach(cls, path: str, ranks: int) -> HeartbeatTable:
        """Opens the table at `path`, as returned by `create`.

        Raises:
            OSError: the agent that made the table is gone, or belongs to another user.
        """
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(handle, ranks)
        finally:
            os.close(handle)

    def ask(self, request: WorkerRequest, within_s: float) -> None:
        """Sets the request to all workers of the node and its deadline, `within_s` seconds from
        now. A later request replaces an earlier one."""
        self._seconds[_REQUEST_DEADLINE] = time.monotonic() + within_s
        self._integers[_REQUEST] = request

    def request(self) -> WorkerRequest:
        """Returns the present request to the workers."""
        return WorkerRequest(self._integers[_REQUEST])

    def seconds_left(self) -> float:
        """Returns the seconds until the deadline of the request, negative after it."""
        return self._seconds[_REQUEST_DEADLINE] - time.monotonic()

    def report(self, rank: int, phase: WorkerPhase, step: int, attempt: int) -> None:
        """Writes a heartbeat of the worker with local rank `rank`."""
        row = _row(rank)
        self._seconds[row + _BEAT] = time.monotonic()
        for field, value in ((_PID, os.getpid()), (_ATTEMPT, attempt), (_STEP, step)):
            self._integers[row + field] = value
        self._integers[row + _PHASE] = phase  # last: see `_slot`

    def report_memory(self, rank: int, peak_bytes: int) -> None:
        """Writes the recent peak of memory of the worker with local rank `rank`."""
        self._integers[_row(rank) + _MEMORY] = peak_bytes

    def report_deadline(self, rank: int, deadline_s: float) -> None:
        """Writes when the program of local rank `rank` counts as hung, in CLOCK_MONOTONIC
        seconds."""
        self._seconds[_row(rank) + _DEADLINE] = deadline_s

    def count_attempt(self) -> int:
        """Returns the number of attempts that were counted before, and counts one more. The worker
        with local rank 0 calls it once when it starts."""
        earlier = self._integers[_ATTEMPTS]
        self._integers[_ATTEMPTS] = earlier + 1
        return earlier

    def slots(self) -> list[Heartbeat]:
        """Returns the last heartbeats by local rank."""
        return [self._slot(_row(rank)) for rank in range(self._ranks)]

    def _slot(self, row: int) -> Heartbeat:
        """Reads a row, the phase first, which `report` writes last: no new phase has the time or
        the pid of before."""
        integers, seconds = self._integers, self._seconds
        return Heartbeat(
            phase=WorkerPhase(integers[row + _PHASE]),
            pid=integers[row + _PID],
            step=integers[row + _STEP],
            beat=seconds[row + _BEAT],
            attempt=integers[row + _ATTEMPT],
            memory=integers[row + _MEMORY],
            deadline=seconds[row + _DEADLINE],
        )


class HeartbeatWriter:
    """The side of one worker of the heartbeat table: it writes the worker's heartbeats and reads
    the request of the agent."""

    def __init__(self, table: HeartbeatTable, local_rank: int, attempt: int) -> None:
        self._table, self._local_rank, self._attempt = table, local_rank, attempt

    def report(self, phase: WorkerPhase, step: int) -> None:
        """Writes a heartbeat; `step` is the number of finished steps."""
        self._table.report(self._local_rank, phase, step, self._attempt)

    def report_memory(self, peak_bytes: int) -> None:
        """Writes the recent peak of the worker's memory in bytes."""
        self._table.report_memory(self._local_rank, peak_bytes)

    def report_deadline(self, deadline_s: float) -> None:
        """Writes when the program of this worker counts as hung, in CLOCK_MONOTONIC seconds; 0: it
        does not."""
        self._table.report_deadline(self._local_rank, deadline_s)

    def count_attempt(self) -> int:
        """Counts an attempt, as `HeartbeatTable.count_attempt`."""
        return self._table.count_attempt()

    def last_step(self) -> int:
        """Returns the number of finished steps in the last heartbeat."""
        return self._table.slots()[self._local_rank].step

    def last(self) -> Heartbeat:
        """Returns the last heartbeat, which may be that of the attempt before."""
        return self._table.slots()[self._local_rank]

    def phase(self) -> WorkerPhase:
        """Returns the phase in the last heartbeat."""
        return self._table.slots()[self._local_rank].phase

    def own_phase(self) -> WorkerPhase | None:
        """Returns the phase that this process has reported last; None: it has reported none. The
        row may hold that of a process before it."""
        slot = self._table.slots()[self._local_rank]
        return slot.phase if slot.pid == os.getpid() else None

    def request(self) -> WorkerRequest:
        """Returns the present request of the agent."""
        return self._table.request()

    def seconds_left(self) -> float:
        """Returns the seconds until the deadline of the request, negative after it."""
        return self._table.seconds_left()


def _row(rank: int) -> int:
    return _HEADER + rank * _ROW


def _size(ranks: int) -> int:
    return _row(ranks) * _WORD
