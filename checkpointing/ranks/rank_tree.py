"""Collectives of all ranks over a tree of connections.

Rank 0 is the root, and each rank has at most `FAN_OUT` children: 16,384 ranks have three levels
below it. What ranks contribute goes up the tree, what results from it comes down, and each inner
rank forwards bytes that it does not look into. A rank therefore has at most `FAN_OUT + 1`
connections, and a collective takes twice the depth of the tree.

Each rank watches its connections between two collectives as well. When one ends, the ranks on both
sides of it tell all others which rank it was, and the tree is of no use any more.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from enum import IntEnum
from typing import TypeVar

from checkpointing.authenticated_channel import CHUNK, AuthenticatedChannel
from checkpointing.errors import OtherRankError, ServiceError
from checkpointing.ranks.rank_network import HAS_ENDED, RankNetwork

T = TypeVar("T")

FAN_OUT = 32
CLOSE_S = 5.0
"""Seconds that `close` waits for a collective that was begun and not waited for."""
UNTAKEN_S = 120.0
"""Seconds after which the end of a parent is noted although this rank has not yet taken what was
broadcast before, such as an error of rank 0."""
_TELL_S = 1.0  # seconds within which another rank takes the message that a rank has ended
_MOST = 1 << 40  # bytes of a collective, to recognise what is no message of this class
_HEAD = struct.Struct("<BQQ")  # call, number of the call, bytes of what follows
_ITEM = struct.Struct("<IQ")  # rank, bytes
_NUMBER = struct.Struct("<q")
_ROOM = CHUNK - _HEAD.size
_READABLE = select.POLLIN | select.POLLRDHUP


class _Call(IntEnum):
    GATHER = 1
    BROADCAST = 2
    MAX = 3
    FAILED = 9  # no call: the text says why the tree is of no use any more


_WORDS: dict[int, str] = {
    _Call.GATHER: "gather",
    _Call.BROADCAST: "broadcast",
    _Call.MAX: "maximum",
}

Merge = Callable[[list[bytes]], bytes]


open_trees: weakref.WeakSet[RankTree] = weakref.WeakSet()
"""The trees of this process, for reports of hangs."""


class RankTree:
    """One tree over the ranks of a network. Every rank makes the same calls in the same order, from
    any threads; a thread of this object runs them one after the other. So a call that is
    interrupted, as by Ctrl-C, still takes place, and the next one follows it."""

    def __init__(
        self,
        network: RankNetwork,
        purpose: str,
        *,
        timeout_s: float | None = None,
        is_main: bool = False,
    ) -> None:
        """Connect to the parent and the children. The constructor waits for them.

        Args:
            purpose: of the connections; no other tree of the network has it.
            timeout_s: seconds that a collective may take; None: as of the network.
            is_main: whether all of the network fails when this tree does, and is closed with it.

        Raises:
            OtherRankError: one of them has ended, or does not answer.
        """
        self.rank, self.world_size = network.rank, network.world_size
        self.timeout_s = network.timeout_s if timeout_s is None else timeout_s
        self.name = f"{network.name}/{purpose}"
        self._network, self._is_main = network, is_main
        self._failure: str | None = None
        self.calls = 0  # number of calls that were begun, the same on all ranks
        self._parent: int | None = (self.rank - 1) // FAN_OUT if self.rank else None
        first = FAN_OUT * self.rank + 1
        self._children = range(min(first, self.world_size), min(first + FAN_OUT, self.world_size))
        self._channels: dict[int, AuthenticatedChannel] = {}
        try:
            for rank in (*(() if self._parent is None else (self._parent,)), *self._children):
                self._channels[rank] = network.connect(rank, purpose)
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OtherRankError as error:
            self._fail(str(error), None)
            raise
        except Exception as error:  # such as of descriptors: the others would wait in vain
            self._fail(f"rank {self.rank} cannot take part: {error}", None)
            raise
        self._ranks = {channel.fileno(): rank for rank, channel in self._channels.items()}
        self._jobs: deque[Callable[[], None] | None] = deque()  # None: there are no more
        self._lock, self._is_over, self._pid = threading.Lock(), False, os.getpid()
        self._thread = threading.Thread(target=self._work, name=f"ranks-{purpose}", daemon=True)
        self._thread.start()
        open_trees.add(self)

    def all_gather(self, mine: bytes | None) -> list[bytes | None]:
        """Returns what all ranks contribute, in order of rank. None takes no memory elsewhere.

        Raises:
            OtherRankError: another rank has ended, did not answer in time, or made another call.
        """
        items = b"" if mine is None else _ITEM.pack(self.rank, len(mine)) + mine
        return _items(self._result(_Call.GATHER, items, b"".join), self.world_size)

    def broadcast(self, body: bytes | None) -> bytes:
        """Returns the bytes of rank 0, which does not wait for the others. Raises as `all_gather`.

        Args:
            body: on rank 0; not used on others.
        """
        return self._result(_Call.BROADCAST, body if self.rank == 0 else None, None)

    def begin_max(self, number: int) -> Future[int]:
        """Begin to find the largest number (of 64 bits) of all ranks. The result raises as
        `all_gather`."""
        found: Future[int] = Future()
        self._submit(
            found,
            lambda: _NUMBER.unpack(self._run(_Call.MAX, _NUMBER.pack(number), _largest))[0],
        )
        return found

    @property
    def failure(self) -> str | None:
        """Why the tree is of no use any more; None: it is."""
        return self._failure

    def close(self) -> None:
        """End the thread, after what was begun, and the network if this is its main tree. A second
        call does nothing."""
        open_trees.discard(self)
        if os.getpid() == self._pid:  # a forked child does not have the thread
            with self._lock:
                if not self._is_over:
                    self._jobs.append(None)
                    os.eventfd_write(self._wake, 1)
            self._thread.join(CLOSE_S)
        if self._is_main:
            self._network.close()

    def _result(self, call: _Call, mine: bytes | None, merge: Merge | None) -> bytes:
        found: Future[bytes] = Future()
        self._submit(found, lambda: self._run(call, mine, merge))
        return found.result()

    def _submit(self, into: Future[T], work: Callable[[], T]) -> None:
        def job() -> None:
            try:
                into.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised where the result is used
                into.set_exception(error)

        if os.getpid() != self._pid:
            raise OtherRankError(
                "the connections to the other ranks belong to the process that this one was forked "
                "from"
            )
        with self._lock:
            if not self._is_over:
                self._jobs.append(job)
                os.eventfd_write(self._wake, 1)
                return
        job()  # raises why

    # --- the thread ---

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                job()
        finally:
            with self._lock:
                self._is_over = True
                os.close(self._wake)
            self._failure = self._failure or "the connections to the other ranks are closed"
            for late in filter(None, self._jobs):
                late()  # raises that

    def _next(self) -> Callable[[], None] | None:
        """Returns the next job. Notices meanwhile that another rank has ended. It looks at all
        connections each time, as a call may have taken what came before the end of one."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for fd in self._ranks if self._failure is None else ():
            poll.register(fd, select.POLLRDHUP)
        patience_s: float | None = None
        while not self._jobs:
            ready = poll.poll(None if patience_s is None else patience_s * 1e3)
            if not ready and self._parent is not None:
                self._note_end(self._parent)
                patience_s = None
            for fd, _ in ready:
                if fd == self._wake:
                    os.eventfd_read(fd)
                    continue
                poll.unregister(fd)
                rank = self._ranks[fd]
                if rank == self._parent and self._has_broadcast(rank):
                    patience_s = UNTAKEN_S
                else:
                    self._note_end(rank)
        return self._jobs.popleft()

    def _run(self, call: _Call, mine: bytes | None, merge: Merge | None) -> bytes:
        """Make one collective and return its result."""
        if self._failure is not None:
            raise OtherRankError(self._failure)
        self.calls += 1
        until_s = time.monotonic() + self.timeout_s
        try:
            if merge is not None:
                assert mine is not None
                parts = self._receive(self._children, call, until_s)
                whole = merge([mine, *(parts[child] for child in self._children)])
                if self._parent is not None:
                    self._send(self._parent, call, whole)
            else:
                whole = mine or b""
            if self._parent is not None:
                whole = self._receive([self._parent], call, until_s)[self._parent]
            for child in self._children:
                self._send(child, call, whole)
        except _TreeError as error:
            why = self._why(error)
            self._fail(why, error.told_by)
            raise OtherRankError(why) from error
        except BaseException as error:  # such as of memory: the others would wait in vain
            self._fail(f"rank {self.rank} has left the {_WORDS[call]}: {error!r}", None)
            raise
        return whole

    def _why(self, error: _TreeError) -> str:
        """Returns why a call failed. If a rank has ended, the main tree is to tell all others which
        one it was, before this rank raises that and may end as well."""
        if not self._is_main and str(error).startswith(HAS_ENDED):
            return self._network.reason(str(error))
        return self._network.failure or str(error)

    def _receive(self, ranks: Iterable[int], call: _Call, until_s: float) -> dict[int, bytes]:
        """Returns what comes from each of these ranks for this call. Notices meanwhile that any
        rank to which there is a connection has ended."""
        missing, found = set(ranks), dict[int, bytes]()
        poll = select.poll()
        for fd in self._ranks if missing else ():
            poll.register(fd, _READABLE)
        while missing:
            left_s = until_s - time.monotonic()
            ready = poll.poll(max(0, left_s) * 1e3)
            if not ready:
                raise _TreeError(
                    f"another rank did not answer in time: rank {min(missing)} has not come to "
                    f"the {_WORDS[call]} for which rank {self.rank} waited {self.timeout_s:,g} s"
                )
            for fd, events in ready:
                rank = self._ranks[fd]
                body = self._message(rank, call)
                is_child = rank in self._children
                if is_child and events & select.POLLRDHUP and self._has_failed(rank):
                    raise self._last_words(rank, ConnectionError("it has left the call"))
                if rank not in missing:
                    raise _TreeError(f"rank {rank} has sent more to rank {self.rank} than expected")
                found[rank] = body
                missing.discard(rank)
        return found

    def _message(self, rank: int, call: _Call) -> bytes:
        """Returns what a rank has sent for this call."""
        which, number, body = self._taken(rank)
        if (which, number) != (call, self.calls):
            theirs = _WORDS.get(which, str(which))
            raise _TreeError(
                f"ranks make different calls: rank {rank} makes a {theirs} as its call {number:,}, "
                f"and rank {self.rank} a {_WORDS[call]} as its call {self.calls:,}"
            )
        return body

    def _taken(self, rank: int) -> tuple[int, int, bytes]:
        """Returns the next that a rank has sent: a call, its number, and what belongs to it."""
        channel = self._channels[rank]
        try:
            first = channel.receive_bytes()
            which, number, size = _HEAD.unpack_from(first)
            body = bytes(first[_HEAD.size :])
            if size > _MOST or len(body) > size:
                raise ServiceError(f"a message of {size} bytes")
            if len(body) < size:  # it is too long for the frame of the head
                body = channel.receive_long(size)
        except (ConnectionError, ServiceError, struct.error) as error:
            raise _TreeError(f"{HAS_ENDED}rank {rank} ({error})") from error
        if which == _Call.FAILED:
            raise _TreeError(body.decode(errors="replace"), told_by=rank)
        return which, number, body

    def _send(self, rank: int, call: _Call, body: bytes) -> None:
        channel, head = self._channels[rank], _HEAD.pack(call, self.calls, len(body))
        try:
            if len(body) <= _ROOM:
                channel.send_bytes(head + body)
                return
            channel.send_bytes(head)
            channel.send_long(body)
        except ConnectionError as error:
            raise self._last_words(rank, error) from error

    def _has_failed(self, rank: int) -> bool:
        """Whether the next thing that a rank has sent is why the tree is of no use."""
        return self._channels[rank].peek() == _Call.FAILED

    def _has_broadcast(self, rank: int) -> bool:
        return self._channels[rank].peek() == _Call.BROADCAST

    def _last_words(self, rank: int, error: Exception) -> _TreeError:
        """Returns why a rank has closed its connection: the last that it has said, if that says
        why. Calls that it has begun before are of no use any more."""
        channel = self._channels[rank]
        with suppress(OSError):
            channel.set_timeout(_TELL_S)
        try:
            while channel.peek() is not None:
                self._taken(rank)
        except _TreeError as last:
            if last.told_by is not None:
                return last
        return _TreeError(f"{HAS_ENDED}rank {rank} ({error})")

    def _note_end(self, rank: int) -> None:
        """Note that a connection has ended between two collectives."""
        if self._failure is None:
            error = self._last_words(rank, ConnectionError("it has closed the connection"))
            self._fail(self._why(error), error.told_by)

    def _fail(self, why: str, told_by: int | None) -> None:
        """Tell the ranks around this one why the tree is of no use, and they tell theirs."""
        self._failure = why
        head = _HEAD.pack(_Call.FAILED, self.calls, len(why.encode()))
        for rank, channel in self._channels.items():
            if rank != told_by:
                with suppress(OSError):  # it has ended, or is told by its others
                    channel.set_timeout(_TELL_S)
                    channel.send_bytes(head + why.encode())
                    channel.end_sending()
        if self._is_main:
            self._network.fail(why, self._channels.values())


class _TreeError(Exception):
    """Why a collective failed.

    Attributes:
        told_by: the rank that has told this one.
    """

    def __init__(self, why: str, told_by: int | None = None) -> None:
        super().__init__(why)
        self.told_by = told_by


def _items(whole: bytes, world_size: int) -> list[bytes | None]:
    """Returns the items of a gather, by rank."""
    found: list[bytes | None] = [None] * world_size
    view, at = memoryview(whole), 0
    while at < len(view):
        rank, size = _ITEM.unpack_from(view, at)
        at += _ITEM.size
        found[rank] = bytes(view[at : at + size])
        at += size
    return found


def _largest(parts: list[bytes]) -> bytes:
    return max(parts, key=lambda part: int(_NUMBER.unpack(part)[0]))
