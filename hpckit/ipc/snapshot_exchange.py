"""The exchange by which an agent asks the workers of its node to describe themselves, and reads
their answers.

A worker waits for a question in a thread that reads a pipe, so that it costs nothing until there is
one. Its answer goes to a region of memory that both share: a disk that hangs holds back neither.
Workers open both through the agent's `/proc` entry, which only the same user may do, and both
vanish with the last process that has them open.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

_HEADER = struct.Struct("=qq")
_REGION = 1 << 18
MOST_BYTES = _REGION - _HEADER.size
"""Bytes of an answer."""


class SnapshotExchange:
    """The agent's side of the exchange with the `ranks` workers of its node. Thread-safe."""

    def __init__(self, ranks: int) -> None:
        self._handle = os.memfd_create("hpckit-snapshots", os.MFD_CLOEXEC)
        os.fchmod(self._handle, 0o600)  # only workers of this user
        os.ftruncate(self._handle, ranks * _REGION)
        self._map = mmap.mmap(self._handle, ranks * _REGION)
        self._pipes = [os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) for _ in range(ranks)]
        self._number = 0
        self._is_closed = False
        self._lock = threading.Lock()  # a thread may still ask when the workers have ended

    @property
    def address(self) -> str:
        """The text by which workers of this node find the exchange."""
        readers = [reader for reader, _ in self._pipes]
        return ":".join(map(str, (os.getpid(), self._handle, *readers)))

    def ask(self) -> int:
        """Asks all workers, and returns the number of the question. After `close`, nobody is
        asked, as the numbers of the pipes may be those of other files."""
        with self._lock:
            self._number += 1
            for _, writer in () if self._is_closed else self._pipes:
                with suppress(BlockingIOError):  # its worker reads nothing
                    os.write(writer, struct.pack("=q", self._number))
            return self._number

    def answer(self, rank: int, number: int) -> bytes | None:
        """Returns the answer of local rank `rank` to a question; None: it has not answered."""
        offset = rank * _REGION
        with self._lock:
            if self._is_closed:
                return None
            answered, length = _HEADER.unpack_from(self._map, offset)
            if answered != number or not 0 <= length <= MOST_BYTES:
                return None
            return self._map[offset + _HEADER.size : offset + _HEADER.size + length]

    def close(self) -> None:
        """Ends the exchange; the threads of workers end. A second call has no effect."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for reader, writer in self._pipes:
                os.close(reader)
                os.close(writer)
            self._map.close()
            os.close(self._handle)


class SnapshotResponder(threading.Thread):
    """The thread of a worker that answers the questions of its agent.

    Args:
        address: as `SnapshotExchange.address` returns it.
        describe: returns the answer to a question with this number.

    Raises:
        OSError: the agent that made the exchange has ended, or belongs to another user.
    """

    def __init__(self, address: str, local_rank: int, describe: Callable[[int], bytes]) -> None:
        super().__init__(name="hpckit snapshots", daemon=True)
        agent, memory, *readers = address.split(":")
        at = f"/proc/{agent}/fd"
        self._reader = os.open(f"{at}/{readers[local_rank]}", os.O_RDONLY | os.O_CLOEXEC)
        handle = os.open(f"{at}/{memory}", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(handle, _REGION, offset=local_rank * _REGION)
        finally:
            os.close(handle)
        self._describe = describe

    def run(self) -> None:
        header = memoryview(self._map)[: _HEADER.size].cast("q")
        while asked := os.read(self._reader, _HEADER.size * 512):
            number = struct.unpack("=q", asked[-8:])[0]  # earlier questions are not waited for
            answer = self._describe(number)[:MOST_BYTES]
            # fields are written one by one, the number last: `pack_into` writes zeros first
            header[0] = 0
            header[1] = len(answer)
            self._map[_HEADER.size : _HEADER.size + len(answer)] = answer
            header[0] = number
