"""A client of the supervisor's rendezvous store with the interface of a torch store."""

from __future__ import annotations

import itertools
import json
import select
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import (  # type: ignore[attr-defined]  # not in its __all__
    DistNetworkError,
    DistStoreError,
    Store,
)

CONNECT_S = 60.0
_READ = 1 << 16
# Keepalive, by which devices on the way do not drop a connection that is silent for days.
_IDLE_S, _BETWEEN_S, _PROBES = 60, 15, 4


class StoreConnection:
    """A connection to an `hpckit.agent.rendezvous_store.RendezvousStore`, for use by one thread."""

    def __init__(self, host: str, port: int, token: str) -> None:
        """Connect and authenticate.

        Raises:
            DistNetworkError: the store cannot be reached.
        """
        try:
            self._socket = socket.create_connection((host, port), CONNECT_S)
            _keep_alive(self._socket)
        except OSError as error:
            raise DistNetworkError(f"the rendezvous store at {host}:{port}: {error}") from error
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._unread = b""
        self._send(token.encode())

    def ask(self, **request: Any) -> int:
        """Send a request, and return its number, which identifies its answer.

        Raises:
            DistNetworkError: the connection is lost.
        """
        number = next(self._numbers)
        self._send(json.dumps({"id": number, **request}).encode())
        return number

    def is_answered(self, number: int) -> bool:
        """Whether the request was answered. It does not wait, and raises as `ask`."""
        self._read(0)
        return number in self._answers

    def answer(self, number: int, within_s: float) -> dict[str, Any]:
        """Wait for the answer to the request `number`, and return it.

        Raises:
            DistNetworkError: the connection is lost.
            DistStoreError: the answer does not come within `within_s` seconds.
        """
        deadline = time.monotonic() + within_s
        while number not in self._answers:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise DistStoreError(f"the store has not answered within {within_s:g} s")
            self._read(left_s)
        return self._answers.pop(number)

    def _send(self, line: bytes) -> None:
        try:
            self._socket.sendall(line + b"\n")
        except OSError as error:
            raise _lost(error) from error

    def _read(self, within_s: float) -> None:
        """Read all answers that have come, and wait for the first one at most `within_s`
        seconds."""
        if not select.select([self._socket], [], [], within_s)[0]:
            return
        try:
            data = self._socket.recv(_READ)
        except OSError as error:
            raise _lost(error) from error
        if not data:
            raise _lost("it has closed the connection")
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            self._answers[answer.pop("id")] = answer


class RendezvousStoreClient(Store):
    """The keys of a store that begin with a prefix. It has only the methods that torchrun uses.

    Values are text in UTF-8.
    """

    def __init__(self, connection: StoreConnection, prefix: str, timeout: timedelta) -> None:
        """Args:
        timeout: the timeout of a `get`, and of a `wait` without one of its own.
        """
        super().__init__()
        self._connection, self._prefix, self._timeout = connection, prefix, timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        text = value if isinstance(value, str) else value.decode()
        self._answer(self._connection.ask(do="set", key=self._prefix + key, value=text))

    def add(self, key: str, by: int) -> int:
        number = self._connection.ask(do="add", key=self._prefix + key, by=by)
        return int(self._answer(number)["value"])

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait until all keys exist, and return their values."""
        answer = self._answer(self.expect(keys))
        return [str(value).encode() for value in answer["values"]]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._answer(self.expect(keys), timeout)

    def expect(self, keys: Sequence[str]) -> int:
        """Return the number of a request that is answered once all `keys` exist."""
        return self._connection.ask(do="get", keys=[self._prefix + key for key in keys])

    def _answer(self, number: int, timeout: timedelta | None = None) -> dict[str, Any]:
        return self._connection.answer(number, (timeout or self._timeout).total_seconds())


def _keep_alive(connected: socket.socket) -> None:
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def _lost(why: object) -> DistNetworkError:
    return DistNetworkError(f"the rendezvous store is lost: {why}")
