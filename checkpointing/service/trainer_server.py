"""Handles the connections of trainers and answers their messages with calls of the service."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from checkpointing.errors import CheckpointError, ServiceError
from checkpointing.service.checkpoint_service import CheckpointService
from checkpointing.service.client.held_snapshots import REPLICA
from checkpointing.service.config import load
from checkpointing.service.protocol.messages import (
    PROTOCOL,
    dump_snapshot,
    load_generation,
    load_layout,
    load_rank,
    load_snapshot,
)
from checkpointing.service.protocol.send_queue import SendQueue
from checkpointing.service.protocol.socket_address import check_peer
from checkpointing.service.protocol.socket_frames import FrameSocket
from checkpointing.service.registry.rank_slots import ArenaLayout
from checkpointing.service.replication.replication_ring import load_ring
from checkpointing.service.snapshots import RankSnapshot, SnapshotLayout
from checkpointing.staging.arena import Arena

logger = logging.getLogger("checkpointing")

GOODBYE_S = 8.0  # the longest that a goodbye waits for a prune that is under way, seconds
_BUSY = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_BUSY_S = 0.5  # seconds until accepting is tried again
# Exceptions that a malformed message raises when it is answered; no trainer sends such a message.
_REFUSED = (KeyError, TypeError, ValueError, OverflowError, RecursionError)


class TrainerServer:
    """Accepts connections on a unix socket until it is closed."""

    def __init__(self, service: CheckpointService, path: Path) -> None:
        """Create the socket and listen.

        Raises:
            OSError: the socket cannot be created; EADDRINUSE if there is one.
        """
        self._service, self._path = service, path
        self._is_closed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)  # the folder was closed to others before, whatever the umask
        self._socket.listen(128)
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def close(self) -> None:
        self._is_closed = True
        self._path.unlink(missing_ok=True)  # first, so that nobody connects any more
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes up the thread that accepts

    def _accept(self) -> None:
        for number in itertools.count():
            sock = self._next()
            if sock is None:
                return
            try:
                check_peer(sock)
            except (ServiceError, OSError) as error:
                logger.warning("%s", error)
                sock.close()
                continue
            connection = _TrainerConnection(self._service, FrameSocket(sock), number)
            threading.Thread(target=connection.serve, name="trainer", daemon=True).start()

    def _next(self) -> socket.socket | None:
        """Return the next connection; None at the end."""
        while True:
            try:
                return self._socket.accept()[0]
            except OSError as error:
                if self._is_closed:
                    return None
                logger.error("cannot accept a trainer: %s", error)
                if error.errno in _BUSY:
                    time.sleep(_BUSY_S)


class _TrainerConnection:
    """One connection of a trainer."""

    def __init__(self, service: CheckpointService, wire: FrameSocket, number: int) -> None:
        self._service, self._registry, self._wire = service, service.registry, wire
        self._number = number
        self._send_queue = SendQueue(wire)
        self._rank: int | None = None
        self._layouts: dict[str, SnapshotLayout] = {}
        self._fds: list[int] = []  # descriptors that came with the message being answered
        self._answers: Mapping[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "join": self._join,
            "arena": self._arena,
            "layout": self._layout,
            "claim": self._claim,
            "staged": self._staged,
            "stream": self._stream,
            "fill": self._fill,
            "unstaged": self._unstaged,
            "resume": self._resume,
            "snapshots": self._snapshots,
            "listen": self._listen,
            "ring": self._ring,
            "pull": self._pull,
            "adopt": self._adopt,
            "goodbye": self._goodbye,
            "grace": self._grace,
            "lost": self._lost,
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
                self._registry.leave(self._rank, self._notify, goodbye=False)
            self._send_queue.close()
            self._wire.close()

    def _grace(self, message: dict[str, Any]) -> None:
        self._service.grant(float(message["seconds"]))

    def _lost(self, message: dict[str, Any]) -> None:
        self._registry.set_lost_ranks(frozenset(int(rank) for rank in message["ranks"]))

    def _answer(self, message: dict[str, Any]) -> None:
        """Answer a message: a request has a number, which its answer repeats; others have no
        answer."""
        number, kind = message.get("number"), message["kind"]
        try:
            if kind not in self._answers:
                raise ServiceError(f"this service does not know the message {kind!r}")
            answer = self._answers[kind](message)
        except (*_REFUSED, CheckpointError) as error:
            logger.warning("rank %s: %s: %r", self._rank, kind, error)
            why = str(error) if isinstance(error, CheckpointError) else repr(error)
            answer = {"refused": f"{kind}: {why}"}
        if number is not None:
            answer = answer or {}
            fd = answer.pop("fd", None)
            self._send_queue.put({"kind": "answer", "number": number, **answer}, fd)

    def _notify(self, message: dict[str, Any]) -> None:
        self._send_queue.put(message)

    def _join(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["protocol"] != PROTOCOL:
            raise ServiceError(
                f"this service speaks protocol {PROTOCOL}, but the trainer speaks "
                f"{message['protocol']}: end process {os.getpid()} and start again"
            )
        rank, ranks, generation = load_rank(message)
        if self._rank not in (None, rank):
            raise ServiceError(f"this connection already belongs to rank {self._rank}")
        self._service.configure(load(message["config"]))
        found = self._registry.join(rank, ranks, generation, self._notify, self._number)
        self._rank = rank
        left: dict[str, Any] = {"slots": found.slots, "slot_bytes": found.slot_bytes}
        if found.newest is not None:
            left["newest"] = found.newest
        return left if found.fd is None else {"fd": found.fd, **left}

    def _arena(self, message: dict[str, Any]) -> None:
        if len(self._fds) != 1:
            raise ServiceError("an arena must be sent as one descriptor")
        rank, slots, slot_bytes = (
            self._joined_rank(),
            int(message["slots"]),
            int(message["slot_bytes"]),
        )
        buckets = int(message["buckets"])
        arena = Arena.attach(self._fds[0], writable=False)
        self._fds.clear()  # the arena owns it now
        try:
            self._registry.register_arena(
                rank, self._notify, ArenaLayout(arena, slots, slot_bytes, buckets)
            )
        except CheckpointError:
            arena.close()
            raise

    def _layout(self, message: dict[str, Any]) -> None:
        layout = load_layout(message)
        newest = list(self._layouts.items())[-1:]  # the snapshot being staged may still refer to it
        self._layouts = {**dict(newest), layout.digest: layout}

    def _claim(self, message: dict[str, Any]) -> dict[str, Any]:
        rank = self._joined_rank()
        slot = self._registry.claim(rank, self._notify, int(message["step"]))
        awaited = self._registry.awaited(rank, self._notify) if slot is None else ""
        return {"slot": slot, "awaited": awaited}

    def _unstaged(self, message: dict[str, Any]) -> None:
        step, skipped = int(message["step"]), int(message["skipped"])
        self._registry.unstaged(self._joined_rank(), self._notify, step, skipped)

    def _staged(self, message: dict[str, Any]) -> None:
        snapshot = load_snapshot(message["snapshot"], self._layouts)
        self._registry.put(self._joined_rank(), self._notify, snapshot)

    def _stream(self, message: dict[str, Any]) -> None:
        snapshot, rank = load_snapshot(message["snapshot"], self._layouts), self._joined_rank()
        stream = self._registry.stream(rank, self._notify, snapshot)
        self._registry.put(rank, self._notify, snapshot, stream)

    def _fill(self, message: dict[str, Any]) -> None:
        fields = ("step", "part", "bucket", "size")
        step, part, bucket, size = (int(message[field]) for field in fields)
        self._registry.fill(self._joined_rank(), self._notify, step, part, bucket, size)

    def _resume(self, message: dict[str, Any]) -> None:
        distrusted = frozenset(bytes.fromhex(pack) for pack in message["distrusted"])
        self._service.resume(
            load_generation(message["generation"]),
            frozenset(message["damaged"]),
            distrusted,
            frozenset(message.get("passed_over", ())),
        )

    def _snapshots(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return all snapshots, with plain values and metadata only for this rank's own."""
        found = [
            (s if s.rank == self._rank else _briefly(s), state)
            for s, state in self._registry.snapshots()
        ]
        plain = [
            {**dump_snapshot(s), "state": state.value, "digests": s.digests} for s, state in found
        ]
        for replica in self._service.replication.replicas.whole():
            plain.append({**dump_snapshot(_briefly(replica)), "state": REPLICA})
        return {"snapshots": plain}

    def _listen(self, message: dict[str, Any]) -> dict[str, Any]:
        where = self._service.replication.listen(str(message["address"]), int(message["port"]))
        return dict(zip(("address", "port"), where, strict=True))

    def _ring(self, message: dict[str, Any]) -> None:
        self._service.replication.join(load_ring(message))

    def _pull(self, message: dict[str, Any]) -> dict[str, Any]:
        rank, step, node = self._joined_rank(), int(message["step"]), int(message["node"])
        generation = load_generation(message["generation"])
        try:
            snapshot, arena = self._service.replication.pull(generation, rank, step, node)
        except ConnectionError as error:
            raise ServiceError(str(error)) from error
        try:
            return {"snapshot": dump_snapshot(snapshot), "fd": os.dup(arena.fd)}
        finally:
            arena.close()

    def _adopt(self, message: dict[str, Any]) -> None:
        self._service.replication.save_lost_ranks(load_generation(message["generation"]))

    def _goodbye(self, message: dict[str, Any]) -> None:
        rank = self._joined_rank()
        self._service.finish(GOODBYE_S)
        self._rank = None
        self._registry.leave(rank, self._notify, goodbye=True)

    def _joined_rank(self) -> int:
        if self._rank is None:
            raise ServiceError("join first")
        return self._rank


def _briefly(snapshot: RankSnapshot) -> RankSnapshot:
    """Return a snapshot as other ranks need it, without what was recorded beside the tensors."""
    return replace(snapshot, values={}, fingerprints=b"")
