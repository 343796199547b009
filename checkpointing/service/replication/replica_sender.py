"""Sends this node's snapshots to the next node of the ring, in the background."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.authenticated_channel import (
    CHUNK,
    AuthenticatedChannel,
    connect_channel,
    new_hello,
)
from checkpointing.errors import CheckpointError, ServiceError
from checkpointing.service.protocol.messages import dump_layout, dump_snapshot
from checkpointing.service.registry.snapshot_registry import SaveProgress, SnapshotRegistry
from checkpointing.service.replication.replication_ring import ReplicationRing, pace
from checkpointing.service.snapshots import RankSnapshot
from checkpointing.service.upload_bandwidth import BandwidthTokenBucket

logger = logging.getLogger("checkpointing")

PING_S = 2.0  # seconds between pings
RETRY_S, MAX_RETRY_S = 0.5, 30.0
ACCEPT_S = 60.0  # seconds within which a peer has to make room for a snapshot
OVERTAKEN_S = 0.1  # seconds until the next attempt
_NOTHING = SaveProgress(None, -2)
_NICER = 5  # added to the niceness of the service


class SnapshotOvertakenError(ServiceError):
    """A snapshot that was overwritten before it was sent, because its slot was needed for a newer
    one."""


@dataclass
class SendCounters:
    """Counters of a replica sender."""

    step: int | None = None  # the newest step that the peer has in full, of all ranks
    created: float = 0.0  # Unix time of its save
    replicated: int = 0  # steps
    skipped: int = 0  # steps that were skipped for a newer one
    overtaken: int = 0  # steps whose slots were refilled meanwhile
    failed: int = 0  # attempts
    bytes: int = 0
    error: str | None = None  # why the last attempt failed; None: it succeeded


class ReplicaSender:
    """Keeps a replica of the newest step of this node's ranks on the next node. The newest step
    wins; a peer that is slow or gone is tried again at growing intervals, and blocks nothing
    here."""

    def __init__(
        self, registry: SnapshotRegistry, ring: ReplicationRing, bytes_per_s: float | None
    ) -> None:
        """Create the sender, which runs in a thread of its own.

        Args:
            bytes_per_s: upper bound; None: no bound.
        """
        assert ring.next is not None
        self._registry, self.ring, self._to = registry, ring, ring.next
        self.ranks = frozenset(ring.mine.ranks)
        self._bucket = BandwidthTokenBucket(bytes_per_s) if bytes_per_s is not None else None
        self._chunk = pace(bytes_per_s, CHUNK)
        self.sent = SendCounters()
        self._goodbye = False
        self._known = _NOTHING  # the progress at the last look
        self._durable_sent = -1  # the newest step that the peer knows to be durable
        self._seen: set[int] = set()  # steps that are neither sent nor skipped
        self._layouts: set[str] = set()  # layouts that the peer knows
        self._link: AuthenticatedChannel | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replicate", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, goodbye: bool, within_s: float = 5.0) -> None:
        """End.

        Args:
            goodbye: nothing that the peer holds is needed any more.
        """
        self._goodbye = goodbye
        self._stop.set()
        self._registry.look_again()
        self._thread.join(within_s)
        if (link := self._link) is not None and self._thread.is_alive():
            link.hang_up()

    def status(self) -> dict[str, Any]:
        """Return the counters as plain data."""
        known = self._registry.await_common(self.ring.generation, self.ranks, _NOTHING, 0.0)
        is_behind = known.step is not None and known.step != self.sent.step
        found = self._look(min(self.ranks), known.step) if is_behind else None
        peer = self.ring.nodes[self._to]
        return {
            "to": peer.name,
            "connected": self._link is not None,
            "newest": known.step,
            "lag_s": max(0.0, time.time() - found[0].created) if found else 0.0,
            **vars(self.sent),
        }

    def _run(self) -> None:
        with suppress(OSError):  # a limit of the system; the service as a whole is nice already
            nice = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, nice + _NICER))
        pause_s = RETRY_S
        while not self._stop.is_set():
            try:
                self._wait_and_send()
                pause_s = RETRY_S
            except SnapshotOvertakenError as error:
                self.sent.overtaken += 1
                self._known = _NOTHING
                logger.warning("not replicated: %s", error)
                self._stop.wait(OVERTAKEN_S)
            except (OSError, CheckpointError) as error:
                self._failed(error)
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, MAX_RETRY_S)
        self._leave()

    def _wait_and_send(self) -> None:
        """Wait for something to do, and do it."""
        now = self._registry.await_common(self.ring.generation, self.ranks, self._known, PING_S)
        self._known = now
        if self._stop.is_set():
            return
        if now.step is not None:
            self._seen.add(now.step)
        has_more = now.step is not None and now.step != self.sent.step
        if self._link is None and not has_more:
            return  # the peer has nothing of this node
        link = self._connected()
        if now.durable > self._durable_sent:
            link.ask({"op": "durable", "step": now.durable})
            self._durable_sent = now.durable
        if has_more and now.step is not None:
            self._replicate(link, now.step)
        else:
            link.ask({"op": "ping"})

    def _replicate(self, link: AuthenticatedChannel, step: int) -> None:
        begun_s, created = time.monotonic(), 0.0
        for rank in sorted(self.ranks):
            created = self._send(link, rank, step)
        older = {one for one in self._seen if one < step}
        self.sent.skipped += len(older)
        self._seen -= {*older, step}
        self.sent.step, self.sent.created, self.sent.error = step, created, None
        self.sent.replicated += 1
        name, took_s = self.ring.nodes[self._to].name, time.monotonic() - begun_s
        logger.info("step %d is also at node %s, after %.1f s", step, name, took_s)

    def _send(self, link: AuthenticatedChannel, rank: int, step: int) -> float:
        """Send one rank's snapshot; return the time at which it was created."""
        found = self._look(rank, step)
        if found is None:
            raise SnapshotOvertakenError(f"step {step} of rank {rank} was removed")
        snapshot, cells = found
        message: dict[str, Any] = {"op": "put", "snapshot": dump_snapshot(snapshot)}
        if snapshot.layout.digest not in self._layouts:
            message["layout"] = dump_layout(snapshot.layout)
        answer = link.ask(message)
        self._layouts.add(snapshot.layout.digest)
        if not answer.get("have"):
            send_in_frames(
                link, snapshot, cells, self._chunk, self._registry.still, self._may_go_on
            )
            self.sent.bytes += snapshot.layout.end
            if "refused" in (answer := link.receive()):
                raise ServiceError(f"the peer refuses: {answer['refused']}")
        return snapshot.created

    def _may_go_on(self, amount: int) -> None:
        if self._stop.is_set():
            raise ConnectionError("this service is ending")
        if self._bucket is not None:
            self._bucket.take(amount)

    def _look(self, rank: int, step: int | None) -> tuple[RankSnapshot, NDArray[np.uint8]] | None:
        return None if step is None else self._registry.look(self.ring.generation, rank, step)

    def _connected(self) -> AuthenticatedChannel:
        if self._link is None:
            peer = self.ring.nodes[self._to]
            hello = new_hello(self.ring.generation.id, self.ring.me, self._to, "origin")
            self._link = connect_channel(peer.address, peer.port, self.ring.key, hello)
            self._link.set_timeout(ACCEPT_S)
            self._layouts = set()
            logger.info("connected to node %s, which keeps replicas of this one", peer.name)
        return self._link

    def _failed(self, error: Exception) -> None:
        """Record a failed attempt. The peer may have lost everything, so it is asked what it
        has."""
        if self._stop.is_set():
            return
        if str(error) != self.sent.error:  # the first failure of its kind
            logger.warning(
                "cannot keep replicas at node %s: %s", self.ring.nodes[self._to].name, error
            )
        self.sent.failed += 1
        self.sent.error, self.sent.step, self._durable_sent = str(error), None, -1
        self._known = _NOTHING
        self._hang_up()

    def _leave(self) -> None:
        link = self._link
        try:
            if link is not None and self._goodbye:
                link.ask({"op": "goodbye"})
        except (OSError, CheckpointError) as error:
            logger.warning("cannot notify the peer of the end: %s", error)
        self._hang_up()

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def send_in_frames(
    link: AuthenticatedChannel,
    snapshot: RankSnapshot,
    cells: NDArray[np.uint8],
    chunk: int,
    still: Callable[[RankSnapshot], bool],
    before: Callable[[int], None],
) -> None:
    """Send all bytes of a snapshot.

    Args:
        cells: its slot, which may be refilled at any time.
        chunk: bytes to send at a time.
        still: returns whether the slot still holds the snapshot.
        before: called with the number of bytes before each frame; may wait.

    Raises:
        SnapshotOvertakenError: the slot was refilled; the other side was notified.
        ConnectionError: the other side is gone.
    """
    for at in range(0, snapshot.layout.end, chunk):
        size = min(chunk, snapshot.layout.end - at)
        before(size)
        copied = cells[at : at + size].tobytes()
        if not still(snapshot):
            why = f"step {snapshot.step} of rank {snapshot.rank} was replaced by a newer one"
            link.send({"refused": why})
            link.receive()
            raise SnapshotOvertakenError(why)
        link.send_bytes(copied)
