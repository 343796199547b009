"""Requests to the shard servers of the other nodes. A node that fails is not asked for a while."""

import logging
import os
import threading
import time
import weakref
from collections.abc import Collection, Sequence
from typing import Any

from checkpointing.authenticated_channel import AuthenticatedChannel, connect_channel, new_hello
from checkpointing.errors import ServiceError
from data.cache.peers.node_ranking import ranked_nodes
from data.cache.peers.peer_group import PeerGroup, PeerPatience
from data.cache.peers.shard_server import ROLE

_TRACKERS = 2  # nodes that are asked who has a shard, if the first one fails
_HELD = 4096  # shards that are named in one message

_log = logging.getLogger(__name__)


class PeerFailedError(Exception):
    """A node did not answer, or what it answered cannot be used; it is not asked for a while."""


class PeerRefusedError(Exception):
    """A node does not have what it was asked for."""


class PeerBusyError(PeerRefusedError):
    """A node has it, but sends as many shards as it can at a time."""


class PeerClient:
    """Asks the nodes of a group, in one process. Thread-safe."""

    def __init__(self, group: PeerGroup, patience: PeerPatience) -> None:
        self.group, self.patience = group, patience
        self._names = [node.name for node in group.nodes]
        self._suspects: dict[int, float] = {}
        self.after_fork()
        _all.add(self)

    def locate(
        self, shard: str, failed: Collection[int], avoided: Collection[int]
    ) -> tuple[int, int | None] | None:
        """Return the tracker of a shard, and the node from which it says to get the shard (None:
        from the source); None if no tracker answers. `failed` and `avoided` are as of
        `ShardHolders.locate`."""
        message = {"op": "locate", "shard": shard, "failed": [*failed], "avoided": [*avoided]}
        for tracker in self._trackers(shard):
            try:
                answer = self.ask(tracker, message)
            except (PeerFailedError, PeerRefusedError):
                continue
            node = answer.get("node")
            known = type(node) is int and 0 <= node < len(self._names)
            return tracker, node if known else None
        return None

    def settle(self, tracker: int, shard: str, *, is_whole: bool) -> None:
        """Tell the tracker of a shard that this node has it, or has given it up."""
        if not self.is_suspect(tracker):
            self._tell(tracker, {"op": "settle", "shard": shard, "whole": is_whole})

    def hold(self, shards: Sequence[str]) -> None:
        """Tell the trackers that this node has these shards in its cache."""
        by_tracker: dict[int, list[str]] = {}
        for shard in shards:
            for tracker in self._trackers(shard)[:1]:
                by_tracker.setdefault(tracker, []).append(shard)
        for tracker, held in by_tracker.items():
            for first in range(0, len(held), _HELD):
                self._tell(tracker, {"op": "hold", "shards": held[first : first + _HELD]})

    def report_wrong(self, node: int, shard: str) -> None:
        """Note that a node has sent wrong bytes, and have it verify its copy of the shard."""
        self._tell(node, {"op": "verify", "shard": shard})
        self.suspect(node, "its bytes are wrong")

    def ask(self, node: int, message: dict[str, Any]) -> dict[str, Any]:
        """Return a node's answer. Raises PeerFailedError, and PeerRefusedError if it refuses."""
        channel = self.connect(node)
        try:
            channel.send(message)
            answer = channel.receive()
        except (OSError, ServiceError) as error:
            self.suspect(node, str(error))
            raise PeerFailedError(str(error)) from error
        finally:
            channel.close()
        if "refused" in answer:
            raise PeerRefusedError(str(answer["refused"]))
        return answer

    def connect(self, node: int) -> AuthenticatedChannel:
        """Return a connection to a node, with which one request has to end within `silent_s`.
        Raises PeerFailedError."""
        group, patience = self.group, self.patience
        there = group.nodes[node]
        hello = new_hello(group.id, group.me, node, ROLE)
        try:
            channel = connect_channel(
                there.address, there.port, group.key, hello, patience.connect_s
            )
            channel.set_timeout(patience.silent_s, time.monotonic() + patience.silent_s)
        except (OSError, ServiceError) as error:
            self.suspect(node, str(error))
            raise PeerFailedError(str(error)) from error
        return channel

    def suspect(self, node: int, problem: str) -> None:
        """Ask a node nothing for a while."""
        now_s = time.monotonic()
        with self._lock:
            is_new = self._suspects.get(node, float("-inf")) <= now_s
            self._suspects[node] = now_s + self.patience.suspect_s
        if is_new:
            _log.warning(
                "the cache of node %s is not used for %.0f s, shards come from other nodes or from"
                " their source: %s",
                self._names[node],
                self.patience.suspect_s,
                problem,
            )

    def is_suspect(self, node: int) -> bool:
        return self._suspects.get(node, float("-inf")) > time.monotonic()

    @property
    def suspects(self) -> set[int]:
        """The nodes that are not asked at present."""
        return {node for node in list(self._suspects) if self.is_suspect(node)}

    def after_fork(self) -> None:
        """Replace the lock, which another thread may have held when this process was forked."""
        self._lock = threading.Lock()

    def _trackers(self, shard: str) -> list[int]:
        ranked = ranked_nodes(shard, self._names)
        return [node for node in ranked if not self.is_suspect(node)][:_TRACKERS]

    def _tell(self, node: int, message: dict[str, Any]) -> None:
        try:
            self.ask(node, message)
        except (PeerFailedError, PeerRefusedError) as error:
            _log.info("node %s could not be informed: %s", self._names[node], error)


_all: "weakref.WeakSet[PeerClient]" = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_all):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)
