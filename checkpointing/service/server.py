"""Trainers' connections: what they ask, by message, of the service."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from checkpointing.arena import Arena
from checkpointing.errors import CheckpointError, ServiceError
from checkpointing.service.address import check_peer
from checkpointing.service.messages import (
    PROTOCOL,
    dump_layout,
    dump_snapshot,
    load_layout,
    load_snapshot,
)
from checkpointing.service.seats import Seat
from checkpointing.service.service import Service
from checkpointing.service.snapshots import Generation, Layout
from checkpointing.service.wire import Wire

logger = logging.getLogger("checkpointing")


class Server:
    """Accepts connections on a unix socket until it is closed."""

    def __init__(self, service: Service, path: Path) -> None:
        """Raises:
        OSError: the socket cannot be made; FileExistsError-like EADDRINUSE if there is one.
        """
        self._service, self._path = service, path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(mask)
        self._socket.listen(128)
        self.visits = 0  # connections so far
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)  # first, so that nobody comes any more
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return  # closed
            try:
                check_peer(sock)
            except (ServiceError, OSError) as error:
                logger.warning("%s", error)
                sock.close()
                continue
            self.visits += 1
            visit = _Visit(self._service, Wire(sock))
            threading.Thread(target=visit.serve, name="visit", daemon=True).start()


class _Visit:
    """One connection."""

    def __init__(self, service: Service, wire: Wire) -> None:
        self._service, self._hall, self._wire = service, service.hall, wire
        self._rank: int | None = None
        self._layouts: dict[str, Layout] = {}
        self._fds: list[int] = []  # that came with the message being answered
        self._answers: Mapping[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "join": self._join,
            "arena": self._arena,
            "layout": self._layout,
            "claim": self._claim,
            "staged": self._staged,
            "resume": self._resume,
            "snapshots": self._snapshots,
            "goodbye": self._goodbye,
            "status": lambda message: {"pid": os.getpid(), **self._service.status()},
        }

    def serve(self) -> None:
        try:
            while (received := self._wire.receive()) is not None:
                message, self._fds = received
                try:
                    self._answer(message)
                finally:
                    for fd in self._fds:
                        os.close(fd)
        except (ConnectionError, CheckpointError) as error:
            logger.warning("rank %s: %s", self._rank, error)
        finally:
            if self._rank is not None:
                self._hall.leave(self._rank, self._notify, goodbye=False)
            self._wire.close()

    def _answer(self, message: dict[str, Any]) -> None:
        """Requests have a number, which their answers have too; others have no answer."""
        number = message.get("number")
        try:
            answer = self._answers[message["kind"]](message)
        except (KeyError, TypeError, ValueError, CheckpointError) as error:
            logger.warning("rank %s: %s: %r", self._rank, message["kind"], error)
            answer = {"refused": str(error) or repr(error)}
        if number is not None:
            answer = answer or {}
            fds = [answer.pop("fd")] if "fd" in answer else []
            self._wire.send({"kind": "answer", "number": number, **answer}, fds)

    def _notify(self, message: dict[str, Any]) -> None:
        try:
            self._wire.send(message)
        except ConnectionError as error:
            logger.warning("rank %s hears nothing any more: %s", self._rank, error)

    def _join(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["protocol"] != PROTOCOL:
            raise ServiceError(
                f"this service speaks protocol {PROTOCOL}, the trainer {message['protocol']}: end "
                f"process {os.getpid()} and start again"
            )
        generation = Generation(**message["generation"])
        rank = int(message["rank"])
        seat = self._hall.join(rank, frozenset(message["ranks"]), generation, self._notify)
        self._rank = rank
        return _left(seat)

    def _arena(self, message: dict[str, Any]) -> None:
        if len(self._fds) != 1:
            raise ServiceError("an arena is one descriptor")
        arena = Arena.attach(os.dup(self._fds[0]))
        self._hall.furnish(self._sits(), arena, message["slots"], message["slot_bytes"])

    def _layout(self, message: dict[str, Any]) -> None:
        layout = load_layout(message)
        self._layouts[layout.digest] = layout

    def _claim(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"slot": self._hall.claim(self._sits(), int(message["step"]))}

    def _staged(self, message: dict[str, Any]) -> None:
        self._service.put(load_snapshot(message["snapshot"], self._layouts))

    def _resume(self, message: dict[str, Any]) -> None:
        distrusted = frozenset(bytes.fromhex(pack) for pack in message["distrusted"])
        generation = Generation(**message["generation"])
        self._service.resume(generation, frozenset(message["damaged"]), distrusted)

    def _snapshots(self, message: dict[str, Any]) -> dict[str, Any]:
        found = self._hall.snapshots()
        layouts = {s.layout.digest: dump_layout(s.layout) for s, _ in found if s.rank == self._rank}
        return {
            "snapshots": [{**dump_snapshot(s), "state": state.value} for s, state in found],
            "layouts": list(layouts.values()),
        }

    def _goodbye(self, message: dict[str, Any]) -> None:
        rank, self._rank = self._sits(), None
        self._hall.leave(rank, self._notify, goodbye=True)

    def _sits(self) -> int:
        if self._rank is None:
            raise ServiceError("join first")
        return self._rank


def _left(seat: Seat) -> dict[str, Any]:
    """The memory that an earlier trainer of this rank has left, if one has."""
    if seat.arena is None:
        return {"slots": 0}
    return {"fd": seat.arena.fd, "slots": len(seat.slots), "slot_bytes": seat.slot_bytes}
