"""Frames over a unix socket: length-prefixed JSON with file descriptors beside it."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from checkpointing.errors import ServiceError

MAX_FRAME = 256 << 20  # bytes; the layout of a million tensors' boxes takes about half of it
SEND_S = 10.0  # seconds after which a peer that does not read counts as gone
_HEAD = struct.Struct("<I")
_MAX_FDS = 4  # descriptors with one message


class FrameSocket:
    """One connection. Sending is thread-safe; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.settimeout(None)
        seconds, micros = int(SEND_S), int(SEND_S % 1 * 1e6)
        timeval = struct.pack("ll", seconds, micros)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        self._sending = threading.Lock()
        self._lock = threading.Lock()  # guards the fields below
        self._users = 0  # number of threads in a call on the socket
        self._closed = False

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message with descriptors.

        Raises:
            ConnectionError: the peer is gone, or has not read for too long.
            ServiceError: the message is too long.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MAX_FRAME:
            raise ServiceError(f"a message of {len(body)} bytes is too long: {message.get('kind')}")
        data = memoryview(_HEAD.pack(len(body)) + body)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            with self._in_use(), self._sending:
                sent = self._sock.sendmsg([data], rights)
                if sent < len(data):
                    self._sock.sendall(data[sent:])
        except OSError as error:
            self.close()
            raise ConnectionError(f"the other side has closed the connection: {error}") from error

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return the next message with its descriptors, which the caller owns; None at the end.

        Raises:
            ServiceError: the received data is not a message.
        """
        fds: list[int] = []
        try:
            with self._in_use():
                body = self._frame(fds)
            if body is not None:
                return _message(body), fds
        except BaseException:
            _close(fds)
            raise
        _close(fds)
        return None

    def close(self) -> None:
        """Close the connection, which wakes up a `receive` under way."""
        with self._lock:
            self._closed = True
            with contextlib.suppress(OSError):  # already closed by the peer
                self._sock.shutdown(socket.SHUT_RDWR)
            self._close_if_unused()

    def has_news(self, wait_s: float) -> bool:
        """Wait up to `wait_s`; return whether there is something to receive, or the end."""
        with self._in_use():
            return bool(select.select([self._sock], [], [], wait_s)[0])

    def is_over(self, wait_s: float) -> bool:
        """Wait up to `wait_s`; return whether the peer has closed the connection. What it sends
        meanwhile is lost."""
        with self._in_use():
            try:
                if not select.select([self._sock], [], [], wait_s)[0]:
                    return False
                return not self._sock.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except (OSError, ValueError):  # ValueError: closed by this side
                return True

    def close_in_child(self) -> None:
        """Close the descriptor of this process, while the connection, which another process owns
        too, stays open."""
        self._sock.close()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the descriptor's number from being given to another file during a call that uses
        it."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closed and not self._users:
            self._sock.close()

    def _frame(self, fds: list[int]) -> bytes | None:
        head = self._read(_HEAD.size, fds)
        if head is None:
            return None
        (length,) = _HEAD.unpack(head)
        if length > MAX_FRAME:
            raise ServiceError(f"a message of {length} bytes is too long")
        return self._read(length, fds)

    def _read(self, length: int, fds: list[int]) -> bytes | None:
        parts: list[bytes] = []
        while length:
            try:
                data, ancillary, flags, _ = self._sock.recvmsg(
                    min(length, 1 << 20),
                    socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize),
                    socket.MSG_CMSG_CLOEXEC,
                )
            except OSError:
                return None
            fds += _descriptors(ancillary)
            if flags & socket.MSG_CTRUNC or len(fds) > _MAX_FDS:
                raise ServiceError(f"a message has more than {_MAX_FDS} descriptors")
            if not data:
                return None
            parts.append(data)
            length -= len(data)
        return b"".join(parts)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _message(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ServiceError(f"the received bytes are not a message: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ServiceError("the received bytes are not a message: no object with a kind")
    return message


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
