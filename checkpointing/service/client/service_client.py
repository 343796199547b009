"""The trainer's side of the checkpoint service."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from checkpointing.errors import CheckpointError, ServiceError
from checkpointing.service.client.held_snapshots import (
    LeftoverArena,
    ServiceMemory,
    load_leftover_arena,
    load_service_memory,
)
from checkpointing.service.client.service_connection import (
    ANSWER_S,
    Introduce,
    OnMessage,
    ServiceConnection,
    give_back,
)
from checkpointing.service.client.service_start import connect
from checkpointing.service.config import ServiceConfig, dump
from checkpointing.service.protocol.messages import PROTOCOL, dump_layout, dump_rank, dump_snapshot
from checkpointing.service.protocol.socket_frames import FrameSocket
from checkpointing.service.snapshots import Generation, RankSnapshot, SnapshotLayout
from checkpointing.staging.arena import Arena

logger = logging.getLogger("checkpointing")

# the longest that a save, and a close, wait for the service, seconds
CLAIM_S, GOODBYE_S = 5.0, 10.0
RETRY_S, MAX_RETRY_S = 0.2, 30.0  # seconds between attempts to start a service again
ARRIVE_S = 60.0  # seconds within which a trainer has to join; longer than a service takes to end
_REMEMBERED = 64  # newest commits that are remembered


class ServiceClient:
    """The connection of one rank to the service of its node. Thread-safe.

    If the service dies, it is started again and is sent everything it has to know; what was staged
    lies in memory that this process maps too.
    """

    def __init__(
        self,
        config: ServiceConfig,
        rank: int,
        ranks: frozenset[int],
        generation: Generation,
        on_message: OnMessage,
    ) -> None:
        """Connect to the service, which is started if it is not running.

        Args:
            ranks: all ranks on this node.
            on_message: called with messages that are not answers, from a thread of this object.

        Raises:
            ServiceError: the service cannot be started.
        """
        self._config, self._rank, self._ranks = config, rank, ranks
        self._generation, self._on_message = generation, on_message
        self._lock = threading.Lock()
        self._changes = 0  # counts the changes that a restarted service has to be sent
        self._memory: tuple[Arena, dict[str, int]] | None = None
        self._layout: SnapshotLayout | None = None
        self._staged: dict[int, RankSnapshot] = {}  # by slot: the last snapshot that was put there
        # the "resume" message that was sent when the state was restored
        self._resumed: dict[str, Any] | None = None
        self._reached = -1  # the newest step that was staged or skipped
        self._missed = 0  # steps that were skipped without the knowledge of the service
        self._durable: set[int] = set()  # the newest steps that are known to be committed
        self._closing = threading.Event()
        self._is_closed = False
        self._recovering: threading.Thread | None = None
        self._link: ServiceConnection | None = None  # None: the service is being started again
        self.awaited = ""  # what of other ranks the save under way waited for at the last skip
        # called with the connection to a restarted service
        self.introduce: Introduce = lambda link: None
        self.left = self._join()
        _clients.add(self)

    @property
    def is_connected(self) -> bool:
        """Whether the service is connected; if not, it is being started again."""
        return self._link is not None

    @property
    def is_silent(self) -> bool:
        """Whether the service is connected but did not answer the last request."""
        link = self._link
        return link is not None and link.is_silent

    def register(self, generation: Generation) -> None:
        """Register this rank as a member of another generation from now on.

        Raises:
            ServiceError: the service does not answer.
        """
        with self._lock:
            self._generation, self._resumed, self._reached = generation, None, -1
            self._durable = set()
            self._staged.clear()
            self._changes += 1
        self._send("join", **self._joining())

    def register_arena(self, arena: Arena, slots: int, slot_bytes: int, buckets: int = 0) -> None:
        """Register the shared memory in which this rank's snapshots lie from now on, or through
        whose buckets they come.

        Raises:
            ServiceError: the service does not answer.
        """
        left, self.left = self.left, None
        if left is not None:
            left.arena.close()
        shape = {"slots": slots, "slot_bytes": slot_bytes, "buckets": buckets}
        with self._lock:
            self._memory = (arena, shape)
            self._staged.clear()
            self._changes += 1
        self._send("arena", fds=(arena.fd,), **shape)

    def reuse_arena(self, left: LeftoverArena) -> None:
        """Keep using the memory that an earlier trainer has left, for this rank's snapshots."""
        with self._lock:
            self._memory = (left.arena, left.shape)
            self._changes += 1

    def layout(self, layout: SnapshotLayout) -> None:
        """Send the layout of the snapshots, once.

        Raises:
            ServiceError: the service does not answer.
        """
        self.begin_layout(layout)()

    def begin_layout(self, layout: SnapshotLayout) -> Callable[[], None]:
        """Send the layout as `layout` does, without waiting. Returns the function that waits until
        the service has it; raises as `layout`, as does that function."""
        with self._lock:
            self._layout = layout
            self._changes += 1
        return self._begin_sending("layout", **dump_layout(layout))

    def claim(self, step: int) -> int | None:
        """Return a slot for the snapshot of `step`, or None if none is free now: the step is
        skipped then.

        A service that does not answer is waited for once and not asked again until a message comes
        from it: a skipped save makes the newest checkpoint older, but waiting delays training.
        """
        return self.begin_claim(step)()

    def begin_claim(self, step: int) -> Callable[[], int | None]:
        """Ask for a slot as `claim` does, without waiting. Returns the function that waits and
        returns it. If that is not called, `unstaged` has to be."""
        self.awaited = ""
        try:
            link = self._present()
            if link.is_silent:
                raise ServiceError("it still does not answer")
            answer = link.begin_request("claim", step=step)
        except (ConnectionError, ServiceError) as error:
            self._give_up_claim(step, error)
            return lambda: None
        return partial(self._finish_claim, step, answer)

    def _finish_claim(self, step: int, answer: Callable[[float], dict[str, Any]]) -> int | None:
        try:
            found = answer(CLAIM_S)
            slot, self.awaited = found["slot"], str(found.get("awaited", ""))
        except (ConnectionError, ServiceError) as error:
            self._give_up_claim(step, error)
            return None
        if slot is None:
            self._note_reached(step)
            return None
        with self._lock:
            self._staged.pop(slot, None)
            self._reached = min(self._reached, step - 1)
            self._changes += 1
        return int(slot)

    def _give_up_claim(self, step: int, error: Exception) -> None:
        logger.warning("step %s is not saved: the checkpoint service: %s", step, error)
        self._missed += 1
        self.unstaged(step)

    def staged(self, snapshot: RankSnapshot) -> None:
        """Report that a snapshot is whole in its slot. A service that is gone learns of it when it
        is back.

        Raises:
            ServiceError: the plain values of the snapshot are too large.
        """
        with self._lock:
            self._staged[snapshot.slot] = snapshot
            self._reached = max(self._reached, snapshot.step)
            self._changes += 1
        try:
            self._present().send("staged", snapshot=dump_snapshot(snapshot))
        except ConnectionError as error:
            logger.warning("step %s waits for the checkpoint service: %s", snapshot.step, error)
        except ServiceError as error:
            with self._lock:
                self._staged.pop(snapshot.slot, None)
            raise ServiceError(
                f"the plain values in the state are too large: {error}; keep long lists of numbers "
                "in tensors"
            ) from error

    def unstaged(self, step: int) -> None:
        """Report that this rank will have no snapshot of `step`, so that nobody waits for it."""
        self._note_reached(step)
        try:
            self._present().send("unstaged", step=step, skipped=self._missed)
            self._missed = 0
        except ConnectionError as error:
            logger.warning(
                "cannot notify the checkpoint service that step %s fails: %s", step, error
            )

    def await_delivery(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until the service, or the one that replaces it, knows of all that
        is staged; return whether it does."""
        deadline_s = time.monotonic() + timeout_s
        while self._staged and self._link is None and not self._closing.is_set():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(RETRY_S)
        return True

    def durable(self, step: int) -> None:
        """Record that `step` is durable: a restarted service need not be sent what is older."""
        with self._lock:
            self._staged = {k: s for k, s in self._staged.items() if s.step >= step}
            self._durable = set(sorted({*self._durable, step})[-_REMEMBERED:])
            self._changes += 1

    def snapshots(self) -> ServiceMemory:
        """Return all snapshots that are whole on this node.

        Raises:
            ServiceError: the service does not answer, or has ended and cannot be started again.
        """
        return self.begin_snapshots()()

    def begin_snapshots(self) -> Callable[[], ServiceMemory]:
        """Ask for the snapshots without waiting. Returns the function that waits and returns them;
        it raises as `snapshots`, and need not be called."""
        try:
            answer = self._present().begin_request("snapshots")
        except ConnectionError:
            return lambda: load_service_memory(self._ask("snapshots"), self._rank)

        def finish() -> ServiceMemory:
            try:
                found = answer(ANSWER_S)
            except ConnectionError:  # it has ended since
                found = self._ask("snapshots")
            return load_service_memory(found, self._rank)

        return finish

    def resume(
        self,
        damaged: frozenset[str] = frozenset(),
        distrusted: frozenset[bytes] = frozenset(),
        skipped: frozenset[str] = frozenset(),
    ) -> None:
        """Report that the state is restored, so that what earlier generations left may be dropped.

        Args:
            damaged: ids of checkpoints that failed to load.
            distrusted: packs in which damage was found.
            skipped: ids of checkpoints that are newer than the state, or are never used again.

        Raises:
            ServiceError: the service does not answer.
        """
        resumed: dict[str, Any] = {
            "generation": asdict(self._generation),
            "damaged": sorted(damaged),
            "distrusted": sorted(pack.hex() for pack in distrusted),
            "passed_over": sorted(skipped),  # as services of earlier releases expect
        }
        with self._lock:
            self._resumed = resumed
            self._changes += 1
        self._send("resume", **resumed)

    def status(self) -> dict[str, Any]:
        """Return the status of the service."""
        return self.ask("status")

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return the answer; raises ConnectionError or ServiceError if there is
        none."""
        return self._present().request(kind, **fields)

    def close(self, *, goodbye: bool = True) -> None:
        """Disconnect. With `goodbye`, the service frees what it holds for this rank."""
        _clients.discard(self)
        self._closing.set()
        if (recovering := self._recovering) is not None:
            recovering.join(GOODBYE_S)
        with self._lock:
            link, self._link, self._is_closed = self._link, None, True
        try:
            if goodbye and link is not None:  # a service that is gone has nothing to free
                link.request("goodbye", timeout_s=GOODBYE_S)
        except (ConnectionError, ServiceError) as error:
            logger.warning("the checkpoint service: %s", error)
        finally:
            if link is not None:
                link.close()
            if self.left is not None and not self._is_reused(self.left.arena):
                self.left.arena.close()

    def _is_reused(self, arena: Arena) -> bool:
        """Whether it is the memory of this rank's snapshots, which the stager releases once nothing
        touches it any more."""
        return self._memory is not None and self._memory[0] is arena

    def forked(self) -> None:
        """Drop the connection in a forked child: it belongs to the parent and ends with it."""
        self._closing.set()
        link, self._link = self._link, None
        if link is not None:
            link.close_in_child()

    def _joining(self) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "config": dump(self._config),
            **dump_rank(self._rank, self._ranks, self._generation),
        }

    def _join(self) -> LeftoverArena | None:
        """Join the service; return the memory that an earlier trainer of this rank has left.

        Raises:
            ServiceError: no service can be started, or none keeps running.
        """
        deadline_s = time.monotonic() + ARRIVE_S
        while True:
            try:
                return self._join_over(connect(self._config))
            except ConnectionError as error:  # the service was just ending
                if time.monotonic() > deadline_s:
                    raise ServiceError(
                        f"the checkpoint service ends again and again: {error}"
                    ) from error
                time.sleep(RETRY_S)

    def _join_over(self, wire: FrameSocket) -> LeftoverArena | None:
        """Join a service and send it all that it has to know; the connection is used from then
        on."""
        link = ServiceConnection(wire, self._on_service_message, self._lost)
        try:
            left = load_leftover_arena(link.request("join", **self._joining()))
            try:
                while not self._send_state(link):
                    give_back(link.request("join", **self._joining()))
            except BaseException:
                if left is not None:
                    left.arena.close()
                raise
        except BaseException:
            link.close()
            raise
        return left

    def _send_state(self, link: ServiceConnection) -> bool:
        """Send the service what it does not know yet; return whether nothing new came up
        meanwhile."""
        with self._lock:
            if self._is_closed:  # its memory may be gone
                raise ConnectionError("this client is closed")
            changes, memory, resumed = self._changes, self._memory_shape(), self._resumed
            reached = self._reached
            staged = sorted(self._staged.values(), key=lambda snapshot: snapshot.step)
            layouts = {s.layout.digest: s.layout for s in staged}
            if self._layout is not None:
                layouts[self._layout.digest] = self._layout
        if memory is not None:
            fd, shape = memory
            try:
                give_back(link.request("arena", fds=(fd,), **shape))
            finally:
                os.close(fd)
        for layout in layouts.values():
            link.request("layout", **dump_layout(layout))
        self.introduce(link)
        if resumed is not None:
            link.request("resume", **resumed)
        for snapshot in staged:
            link.send("staged", snapshot=dump_snapshot(snapshot))
        if reached >= 0:
            link.send("unstaged", step=reached, skipped=0)
        with self._lock:
            if changes != self._changes:
                return False
            if link.has_ended or self._is_closed:
                raise ConnectionError("it has ended")
            self._link = link
            return True

    def _memory_shape(self) -> tuple[int, dict[str, int]] | None:
        """Return a descriptor of the memory and its shape; None if there is none at the moment."""
        try:
            return self._memory and (os.dup(self._memory[0].fd), self._memory[1])
        except ValueError:
            return None

    def _on_service_message(self, message: dict[str, Any]) -> None:
        if message["kind"] == "committed":
            self.durable(int(message["step"]))
        elif message["kind"] == "dropped" and message["step"] in self._durable:
            return  # a restarted service needs the slot, whose snapshot is durable
        self._on_message(message)

    def _lost(self, link: ServiceConnection) -> None:
        with self._lock:
            if link is not self._link:
                return
            self._link = None
        if not self._closing.is_set():
            self._recovering = threading.Thread(target=self._recover, name="recover", daemon=True)
            self._recovering.start()

    def _recover(self) -> None:
        """Replace a service that is gone: start another one and send it all that it has to know."""
        logger.warning("the checkpoint service of this node has ended: restarting it")
        self._on_message({"kind": "service_lost"})
        pause_s = RETRY_S
        while not self._closing.is_set():
            try:
                left = self._join_over(connect(self._config))
                if left is not None:  # a copy from a peer; this process has its own memory
                    left.arena.close()
                return
            except (ConnectionError, CheckpointError) as error:
                logger.warning("starting the checkpoint service: %s", error)
                if isinstance(error, CheckpointError):
                    self._on_message({"kind": "service_failed", "error": str(error)})
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, MAX_RETRY_S)

    def _note_reached(self, step: int) -> None:
        with self._lock:
            self._reached = max(self._reached, step)
            self._changes += 1

    def _send(self, kind: str, fds: tuple[int, ...] = (), **fields: Any) -> None:
        """Send a message without an answer; a service that is gone is sent its content when it is
        back."""
        self._begin_sending(kind, fds, **fields)()

    def _begin_sending(
        self, kind: str, fds: tuple[int, ...] = (), **fields: Any
    ) -> Callable[[], None]:
        """Begin `_send`. Returns the function that waits until the service has the message."""
        try:
            answer = self._present().begin_request(kind, fds=fds, **fields)
        except ConnectionError as error:
            _log_later(kind, error)
            return lambda: None

        def finish() -> None:
            try:
                give_back(answer(ANSWER_S))
            except ConnectionError as error:
                _log_later(kind, error)

        return finish

    def _ask(self, kind: str) -> dict[str, Any]:
        """Return the answer to a request, after starting the service if it has ended."""
        deadline_s = time.monotonic() + ARRIVE_S
        while True:
            try:
                return self._present().request(kind)
            except ConnectionError as error:
                if time.monotonic() > deadline_s:
                    raise ServiceError(f"the checkpoint service: {error}") from error
                time.sleep(RETRY_S)

    def _present(self) -> ServiceConnection:
        link = self._link
        if link is None:
            what = "this client is closed" if self._is_closed else "it is being restarted"
            raise ConnectionError(what)
        return link


def _log_later(kind: str, error: ConnectionError) -> None:
    logger.warning("the %s is sent to the checkpoint service later: %s", kind, error)


_clients: weakref.WeakSet[ServiceClient] = weakref.WeakSet()


def _after_fork() -> None:
    """Close connections in a child, such as a worker of a DataLoader, which would otherwise keep
    the connection of a dead trainer open."""
    for client in list(_clients):
        client.forked()


os.register_at_fork(after_in_child=_after_fork)
