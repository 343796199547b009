"""Serves the other nodes of a job: says from which node to get a shard, and sends shards of its
cache."""

import ipaddress
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from checkpointing.authenticated_channel import (
    AuthenticatedChannel,
    ChannelHello,
)
from checkpointing.channel_listener import ChannelListener
from checkpointing.errors import ServiceError
from data.cache.files import shard_quarantine, shard_record
from data.cache.files.cache_entry import DAMAGED, DROPPED, WHOLE, CacheEntry
from data.cache.files.cache_folder import CacheFolder, hash_of
from data.cache.files.file_handle import FileHandle
from data.cache.files.file_locks import FileLock
from data.cache.peers.peer_group import PeerGroup
from data.cache.peers.shard_holders import ShardHolders
from data.errors import DataError

ROLE = "shards"
PIECE = 512 << 10  # bytes of a shard in one frame
MOST_SENDING = 32  # shards that are sent at a time
_BEAT_S = 0.5  # between two messages, if there is nothing to send
_POLL_S = 0.01  # between two looks at a growing file
_ABANDONED_S = 1.0  # without a new byte, after which it is checked whether anyone downloads
_BUSY_S = 0.5
"""Seconds that a connection waits for others that prove themselves: all nodes may connect at the
same time, as for the shard that all of them need first."""

_log = logging.getLogger(__name__)


class ShardServer:
    """Listens at one address of this node, until it is closed. The sockets are this process's
    alone, so a forked child does not keep them open.

    Raises DataError if it cannot listen there.
    """

    def __init__(self, address: str, folder: CacheFolder) -> None:
        listening = _listening(address)
        self.address, self.port = address, int(listening.getsockname()[1])
        self.bytes_sent = 0
        """Bytes of shards that were sent to other nodes."""
        self.refused = 0
        """Connections that did not prove that they have the key."""
        self._folder, self._holders = folder, ShardHolders()
        self._group: PeerGroup | None = None
        self._sending = threading.Semaphore(MOST_SENDING)
        self._lock = threading.Lock()
        self._listener = ChannelListener(
            listening,
            self._key_of,
            self._serve,
            name="hpckit-shard-peers",
            refuse=self._refuse,
            patience_s=_BUSY_S,
        )
        _all.add(self)

    def start(self, group: PeerGroup) -> None:
        """Answer the nodes of this group, from now on."""
        self._group = group
        self._listener.start()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._listener.close()

    def after_fork(self) -> None:
        """Close the sockets in a forked child, which has none of the threads that answer; the
        connections of its parent go on."""
        self._listener.after_fork()
        self._lock = threading.Lock()

    def note_sent(self, size: int) -> None:
        """Count bytes of a shard as sent."""
        with self._lock:
            self.bytes_sent += size

    def _refuse(self) -> None:
        self.refused += 1

    def _key_of(self, hello: ChannelHello) -> bytes | None:
        group = self._group
        known = (
            group is not None
            and (hello.generation, hello.to, hello.role) == (group.id, group.me, ROLE)
            and 0 <= hello.node < len(group.nodes)
        )
        return group.key if known and group is not None else None

    def _serve(self, channel: AuthenticatedChannel, hello: ChannelHello) -> None:
        """Answer the requests of one connection, until the other side is gone."""
        node = hello.node
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "locate": lambda message: self._locate(node, message),
            "settle": lambda message: self._settle(node, message),
            "hold": lambda message: self._hold(node, message),
            "get": lambda message: self._send(channel, message),
            "verify": self._verify,
        }
        try:
            while True:
                message = channel.receive()
                answer = self._answer(answers, message)
                if answer is not None:
                    channel.send(answer)
        except ConnectionError:
            return  # it has what it wanted, or its process has ended
        except (ServiceError, OSError) as error:
            _log.warning("the connection of node %d is closed: %s", node, error)

    def _answer(
        self,
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]],
        message: dict[str, Any],
    ) -> dict[str, Any] | None:
        try:
            return answers[str(message["op"])](message)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return {"refused": f"not a request: {error!r}"}

    def _locate(self, node: int, message: dict[str, Any]) -> dict[str, Any]:
        failed = [int(one) for one in message["failed"]]
        avoided = [int(one) for one in message["avoided"]]
        chosen = self._holders.locate(_entry(message["shard"]).stem, node, failed, avoided)
        return {"node": chosen}

    def _settle(self, node: int, message: dict[str, Any]) -> dict[str, Any]:
        shard = _entry(message["shard"]).stem
        self._holders.settle(shard, node, is_whole=message["whole"] is True)
        return {}

    def _hold(self, node: int, message: dict[str, Any]) -> dict[str, Any]:
        self._holders.add(node, [_entry(one).stem for one in message["shards"]])
        return {}

    def _verify(self, message: dict[str, Any]) -> dict[str, Any]:
        """Verify a shard of which another node got wrong bytes, and remove it if it is damaged."""
        entry = _entry(message["shard"])
        found = shard_record.read(self._folder.path(entry, "json"))
        file = self._folder.open_whole(entry)
        if file is None or found is None or found.hash == hash_of(file.fd):
            return {}
        shard_quarantine.replace(self._folder, entry, file.fd)
        _log.warning("shard %s was damaged in the cache and was moved to quarantine", entry.name)
        return {}

    def _send(
        self, channel: AuthenticatedChannel, message: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Send the shard from a byte on, also while it grows."""
        entry, at = _entry(message["shard"]), int(message["at"])
        if not 0 <= at <= entry.bytes:
            return {"refused": f"byte {at} is outside of the shard"}
        if not self._sending.acquire(blocking=False):
            return {"refused": f"it sends {MOST_SENDING} shards already", "busy": True}
        try:
            return _FileSender(self, self._folder, channel, entry, at).run()
        finally:
            self._sending.release()


class _FileSender:
    """Sends one shard to one node."""

    def __init__(
        self,
        server: ShardServer,
        folder: CacheFolder,
        channel: AuthenticatedChannel,
        entry: CacheEntry,
        at: int,
    ) -> None:
        self._server, self._folder, self._channel = server, folder, channel
        self._entry, self._at = entry, at
        self._sent_s = self._grew_s = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Send what is available; returns the last message: the shard's hash, or why it ends."""
        file = self._open()
        if file is None:
            return {"refused": "it is not in this cache"}
        while True:
            mode, size = file.mode, file.size  # the mode first, as a whole shard no longer grows
            if mode in (DAMAGED, DROPPED):
                return {"refused": "its download has failed here"}
            if self._at < size:
                self._piece(file, size)
            elif mode == WHOLE:
                found = shard_record.read(self._folder.path(self._entry, "json"))
                return {"end": None if found is None else found.hash}
            elif self._is_abandoned():
                return {"refused": "its download has stopped here"}
            else:
                self._wait()

    def _open(self) -> FileHandle | None:
        """Open the shard or its growing part, which may become the shard in between."""
        folder, entry = self._folder, self._entry
        return folder.open_whole(entry) or folder.open_part(entry) or folder.open_whole(entry)

    def _piece(self, file: FileHandle, size: int) -> None:
        piece = file.read(self._at, min(PIECE, size - self._at))
        self._at += len(piece)
        self._channel.send({"bytes": len(piece), "more": self._at < size})
        self._channel.send_bytes(piece)
        self._server.note_sent(len(piece))
        self._sent_s = self._grew_s = time.monotonic()

    def _wait(self) -> None:
        """Wait for the growing file; a message now and then says that this process is alive."""
        time.sleep(_POLL_S)
        if time.monotonic() - self._sent_s >= _BEAT_S:
            self._channel.send({"bytes": 0, "more": False})
            self._sent_s = time.monotonic()

    def _is_abandoned(self) -> bool:
        """Return whether no process downloads the shard any more, of whose file this is a part."""
        if time.monotonic() - self._grew_s < _ABANDONED_S:
            return False
        self._grew_s = time.monotonic()
        lock = FileLock.try_acquire(self._folder.path(self._entry, "lock"))
        if lock is None:
            return False
        with lock:
            return self._folder.open_whole(self._entry) is None


def _entry(stem: object) -> CacheEntry:
    """Return the entry with this stem. Raises ValueError, so that a request names shards only."""
    parsed = CacheEntry.parse(f"{stem}.shard") if isinstance(stem, str) else None
    if parsed is None:
        raise ValueError("not the name of a shard")
    return parsed[0]


def _listening(address: str) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(
            address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if ipaddress.ip_address(str(where[0]).partition("%")[0]).is_unspecified:
            raise DataError(f"address {address!r} stands for all network interfaces")
        return socket.create_server((where[0], 0), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        raise DataError(
            f"cannot listen at {address} for the caches of other nodes: {error}; give an address of"
            " this node that the others reach"
        ) from error


_all: "weakref.WeakSet[ShardServer]" = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_all):
        server.after_fork()


os.register_at_fork(after_in_child=_after_fork)
