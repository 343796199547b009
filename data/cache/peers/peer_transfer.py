"""What one download gets from other nodes, before it goes on at its source."""

import logging
import time
from collections.abc import Iterator

from checkpointing.authenticated_channel import AuthenticatedChannel
from checkpointing.errors import ServiceError
from data.cache.cache_metrics import CacheMetrics
from data.cache.files.cache_entry import CacheEntry
from data.cache.peers.peer_client import (
    PeerBusyError,
    PeerClient,
    PeerFailedError,
    PeerRefusedError,
)
from data.cache.peers.peer_group import PeerPace

_TRIES = 4  # nodes that are asked for one shard

_log = logging.getLogger(__name__)


class PeerTransfer:
    """The bytes of one shard from other nodes. One thread uses it."""

    def __init__(self, client: PeerClient, entry: CacheEntry, metrics: CacheMetrics) -> None:
        self._client, self._shard, self._metrics = client, entry.stem, metrics
        self._tracker: int | None = None
        self._sender: int | None = None
        self.bytes = 0
        """Bytes that came from other nodes."""

        self.hash: str | None = None
        """The hash of the shard as the node that sent its end has recorded it; None: not known."""

    def pieces(self, at: int) -> Iterator[bytes]:
        """Yield the bytes from `at` on as far as other nodes have them; the rest is to be fetched
        from the source, and so is all of it if this node is the one that fetches it for the others.

        How long it takes if other nodes fail is limited by the `PeerPatience`. Empty pieces come
        while a node waits for bytes itself, and after one that failed, so that the caller can end
        it.
        """
        failed, busy = set[int](), set[int]()
        lost_s = 0.0
        while len(failed | busy) < _TRIES and lost_s < self._client.patience.lost_s:
            began_s = time.monotonic()
            node = self._locate(failed, busy)
            if node is None:
                return
            try:
                for piece in self._receive(node, at):
                    at += len(piece)
                    self.bytes += len(piece)
                    self._metrics.add(bytes_from_peers=len(piece))
                    yield piece
                    began_s = time.monotonic() if piece else began_s
            except PeerRefusedError as error:
                _log.info("node %d does not send shard %s: %s", node, self._shard, error)
                (busy if isinstance(error, PeerBusyError) else failed).add(node)
            except PeerFailedError:
                self._metrics.add(peer_failures=1)
                failed.add(node)
            else:
                return
            lost_s += time.monotonic() - began_s
            yield b""

    def settle(self, *, is_whole: bool) -> None:
        """Tell the tracker of the shard how the download has ended."""
        if self._tracker is not None:
            self._client.settle(self._tracker, self._shard, is_whole=is_whole)

    def report_wrong(self) -> None:
        """Note that the bytes that came were wrong."""
        self._metrics.add(peer_failures=1)
        if self._sender is not None:
            self._client.report_wrong(self._sender, self._shard)

    def _locate(self, failed: set[int], busy: set[int]) -> int | None:
        # that this node cannot reach a suspect says nothing about what that one has
        found = self._client.locate(self._shard, failed, busy | self._client.suspects)
        if found is None:
            return None
        self._tracker, node = found
        return node

    def _receive(self, node: int, at: int) -> Iterator[bytes]:
        """Yield what a node sends. Raises PeerFailedError, PeerRefusedError."""
        channel = self._client.connect(node)
        try:
            yield from self._messages(channel, node, at)
        except (OSError, ServiceError) as error:
            self._client.suspect(node, str(error))
            raise PeerFailedError(str(error)) from error
        finally:
            channel.close()

    def _messages(self, channel: AuthenticatedChannel, node: int, at: int) -> Iterator[bytes]:
        patience = self._client.patience
        pace = PeerPace(patience, time.monotonic())
        has_more = True
        channel.send({"op": "get", "shard": self._shard, "at": at})
        while True:
            began_s = time.monotonic()
            channel.set_timeout(patience.silent_s, began_s + patience.slow_s)
            message = channel.receive()
            if "refused" in message:
                kind = PeerBusyError if message.get("busy") is True else PeerRefusedError
                raise kind(str(message["refused"]))
            if "end" in message:
                self.hash = message["end"] if isinstance(message["end"], str) else None
                return
            size = message.get("bytes")
            if type(size) is not int or size < 0:
                raise ServiceError("it sent a message that is not a part of a shard")
            piece = bytes(channel.receive_bytes()) if size else b""
            now_s = time.monotonic()
            problem = pace.problem(now_s, len(piece), now_s - began_s, has_more=has_more)
            has_more = message.get("more") is True
            if piece:
                self._sender = node
            yield piece
            if problem is not None:
                raise ServiceError(problem)
