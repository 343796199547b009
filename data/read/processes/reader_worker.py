"""One reader process, as seen by the process that consumes its batches."""

import os
import signal
from collections import deque
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.reduction import recv_handle, send_handle

from data.errors import ReaderProcessError
from data.read.batches.batch_fetcher import BatchWork
from data.read.processes.reader_process import BatchResult, ForkInheritance, serve
from data.read.processes.shared_memory_slot import PickleLayout, SharedMemorySlot

_POLL_S = 1.0  # how often to check a process whose end may not be noticed otherwise
_GONE_S = 1.0  # until the kernel has removed what was killed


class ReaderWorker:
    """A reader process, which makes batches in the order in which they are asked for, at most
    `depth` at a time."""

    def __init__(
        self,
        number: int,
        context: ForkContext | SpawnContext,
        depth: int,
        inherited: ForkInheritance | None,
    ) -> None:
        self._depth = depth
        self._connection, self._child_connection = context.Pipe()
        if inherited is not None:
            inherited.connections.extend((self._connection, self._child_connection))
        self._process = context.Process(
            target=serve,
            args=(self._child_connection, os.getpid(), depth, inherited),
            name=f"hpckit-reader-{number}",
            daemon=True,
        )
        self._slots: list[SharedMemorySlot] = []
        self._made: deque[tuple[PickleLayout, bool]] = deque()
        self._taken = 0

    def start(self, setup: SharedMemorySlot, layout: PickleLayout) -> None:
        """Start the process; it dies with the calling thread. Raises OSError."""
        self._process.start()
        self._child_connection.close()
        with suppress(ConnectionError):  # dead already, which its first batch reports
            send_handle(self._connection, setup.fd, self.pid)
            self._connection.send(layout)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def name(self) -> str:
        """The name of the process in messages."""
        return f"reader process {self._process.name} (pid {self.pid})"

    @property
    def ready(self) -> int:
        """The number of batches that are available."""
        try:
            while len(self._slots) == self._depth and self._connection.poll():
                self._made.append(self._connection.recv())
        except (EOFError, OSError):  # reported when the next batch is asked for
            pass
        return len(self._made)

    def ask(self, work: BatchWork | None) -> None:
        """Ask for one more batch; None asks the process to verify its reads (`await_verification`),
        which gives a result like a batch."""
        with suppress(ConnectionError):  # it is dead, which is reported when this batch is taken
            self._connection.send(work)

    def take(self) -> tuple[BatchResult, bool]:
        """Wait for the next batch; returns it, and whether its slot had to grow.

        Returns the same one until `done`. Raises ReaderProcessError if the process has ended;
        OSError after `end`.
        """
        while len(self._slots) < self._depth:
            self._await()
            try:
                self._slots.append(SharedMemorySlot(recv_handle(self._connection)))
            except (EOFError, RuntimeError, ConnectionError) as error:
                raise self._dead() from error
        if not self._made:
            self._await()
            try:
                self._made.append(self._connection.recv())
            except (EOFError, ConnectionError) as error:
                raise self._dead() from error
        layout, grown = self._made[0]
        return self._slots[self._taken % self._depth].take(layout), grown

    def done(self) -> None:
        """Note that the batch has been copied out of its slot."""
        self._made.popleft()
        self._taken += 1

    def kill(self) -> None:
        """Kill the process, if it was started, without waiting."""
        self._connection.close()
        if self._process.pid is not None:
            self._process.kill()

    def leave(self) -> None:
        """Ask the process to end after the batch that it is making."""
        self._connection.close()

    def end(self, grace_s: float) -> None:
        """Wait until the process has ended; kill it if that takes longer than `grace_s`."""
        self._process.join(grace_s)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join(_GONE_S)

    def _await(self) -> None:
        """Wait until there is something to receive."""
        while not self._connection.poll():
            # A child of the process may keep the connection open after its end, so poll, too
            ended = self._process.exitcode is not None
            ready = wait([self._connection, self._process.sentinel], 0 if ended else _POLL_S)
            if self._connection not in ready and (ready or ended):
                raise self._dead()

    def _dead(self) -> ReaderProcessError:
        self._process.join(_GONE_S)
        return ReaderProcessError(self.name, self._process.exitcode, _why(self))


def _why(worker: ReaderWorker) -> str:
    code = worker._process.exitcode
    if code == -signal.SIGKILL:
        return "unless someone killed it, the machine or the job ran out of memory"
    if len(worker._slots) < worker._depth:
        return (
            "this was before its first batch; it has printed the reason to this process's stderr;"
            ' a script that starts training when it is imported needs `if __name__ == "__main__":`'
        )
    return "it may have printed the reason to this process's stderr"
