"""Frames over a unix socket: length-prefixed JSON, and file descriptors beside it."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from checkpointing.errors import ServiceError

MAX_FRAME = 256 << 20  # bytes; a layout of a million tensors' boxes takes about half of it
SEND_S = 10.0  # after which a peer that does not read counts as gone
_HEAD = struct.Struct("<I")
_MAX_FDS = 4


class Wire:
    """One connection. Sending is thread-safe; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.settimeout(None)
        seconds, micros = int(SEND_S), int(SEND_S % 1 * 1e6)
        timeval = struct.pack("ll", seconds, micros)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Raises:
        ConnectionError: the peer is gone, or has not read for too long.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MAX_FRAME:
            raise ServiceError(f"a message of {len(body)} bytes is too long: {message.get('kind')}")
        data = memoryview(_HEAD.pack(len(body)) + body)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            with self._lock:
                sent = self._sock.sendmsg([data], rights)
                self._sock.sendall(data[sent:])
        except OSError as error:
            self.close()
            raise ConnectionError(f"the other side is gone: {error}") from error

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next message with its descriptors, which the caller owns; None at the end.

        Raises:
            ServiceError: what came is no message.
        """
        fds: list[int] = []
        try:
            head = self._read(_HEAD.size, fds)
            if head is None:
                return None
            (length,) = _HEAD.unpack(head)
            if length > MAX_FRAME:
                raise ServiceError(f"a message of {length} bytes is too long")
            body = self._read(length, fds)
            if body is None:
                _close(fds)
                return None
            return _message(body), fds
        except BaseException:
            _close(fds)
            raise

    def close(self) -> None:
        """Wakes up a `receive` under way."""
        with contextlib.suppress(OSError):  # it was over already
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _read(self, length: int, fds: list[int]) -> bytes | None:
        parts: list[bytes] = []
        while length:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(
                    min(length, 1 << 20),
                    socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize),
                    socket.MSG_CMSG_CLOEXEC,
                )
            except OSError:
                return None
            fds += _descriptors(ancillary)
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
    except ValueError as error:
        raise ServiceError(f"what came is no message: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ServiceError("what came is no message: no object with a kind")
    return message


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
