"""A trainer's side of the service."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from checkpointing.arena import Arena
from checkpointing.errors import CheckpointError, ServiceError
from checkpointing.service.config import Config
from checkpointing.service.messages import PROTOCOL, dump_layout, dump_snapshot, load_layout
from checkpointing.service.snapshots import Generation, Layout, Snapshot
from checkpointing.service.starting import connect
from checkpointing.service.wire import Wire

logger = logging.getLogger("checkpointing")

ANSWER_S = 60.0  # a service that does not answer for so long counts as gone
CLAIM_S = 5.0  # the longest that a save may wait for the service
RETRY_S, MAX_RETRY_S = 0.2, 30.0  # between attempts to start a service again

OnMessage = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Left:
    """Shared memory that an earlier trainer of this rank has left in the service."""

    arena: Arena
    slots: int
    slot_bytes: int


@dataclass(frozen=True)
class Found:
    """A whole snapshot in the service. Plain data, all but the layout: it travels between ranks."""

    generation: Generation
    rank: int
    step: int
    slot: int
    digest: str
    is_durable: bool


class Client:
    """One rank's connection. If the service dies, it is started again and told all that it has to
    know; what was staged is in memory that this process holds too. Thread-safe."""

    def __init__(
        self,
        config: Config,
        rank: int,
        ranks: frozenset[int],
        generation: Generation,
        on_message: OnMessage,
    ) -> None:
        """
        Args:
            ranks: all that are on this node.
            on_message: called with what the service says by itself, from a thread of this object.

        Raises:
            ServiceError: it cannot be started.
        """
        self._config, self._rank, self._ranks = config, rank, ranks
        self._generation, self._on_message = generation, on_message
        self._numbers = itertools.count(1)
        self._answers: dict[int, _Answer] = {}
        self._lock = threading.Lock()
        self._furniture: tuple[Arena, int, int] | None = None
        self._layouts: dict[str, Layout] = {}
        self._staged: dict[int, Snapshot] = {}  # by slot: the last one put there
        self._closing = False
        self._wire: Wire | None = None
        self.left = self._join(connect(config))

    def generation(self, generation: Generation) -> None:
        """Sit there as another generation from now on."""
        self._generation = generation
        self._staged.clear()
        self._request("join", **self._joining())

    def furnish(self, arena: Arena, slots: int, slot_bytes: int) -> None:
        """Snapshots of this rank lie in this memory from now on."""
        self._furniture = (arena, slots, slot_bytes)
        self._staged.clear()
        self._send_arena()

    def layout(self, layout: Layout) -> None:
        """Say once how snapshots are laid out."""
        self._layouts = {layout.digest: layout}
        self._request("layout", **dump_layout(layout))

    def claim(self, step: int) -> int | None:
        """A slot for the snapshot of `step`, or None if there is none now: skip it."""
        try:
            slot = self._request("claim", step=step, timeout_s=CLAIM_S)["slot"]
        except (ConnectionError, ServiceError) as error:
            logger.warning("step %s is not saved: the checkpoint service: %s", step, error)
            return None
        if slot is not None:
            self._staged.pop(slot, None)
        return None if slot is None else int(slot)

    def staged(self, snapshot: Snapshot) -> None:
        """A snapshot is whole in its slot. A service that is gone hears of it when it is back."""
        self._staged[snapshot.slot] = snapshot
        try:
            self._send("staged", snapshot=dump_snapshot(snapshot))
        except ConnectionError as error:
            logger.warning("step %s waits for the checkpoint service: %s", snapshot.step, error)

    def durable(self, step: int) -> None:
        """A service that is started again need not hear of this step or earlier ones."""
        self._staged = {k: s for k, s in self._staged.items() if s.step > step}

    def snapshots(self) -> tuple[list[Found], dict[str, Layout]]:
        """All that are whole on this node, and layouts of those of this rank."""
        answer = self._request("snapshots")
        layouts = [load_layout(plain) for plain in answer["layouts"]]
        return [_found(plain) for plain in answer["snapshots"]], {x.digest: x for x in layouts}

    def resume(self, damaged: frozenset[str], distrusted: frozenset[bytes]) -> None:
        """The state is restored: what earlier generations left may go."""
        self._request(
            "resume",
            generation=asdict(self._generation),
            damaged=sorted(damaged),
            distrusted=sorted(pack.hex() for pack in distrusted),
        )

    def status(self) -> dict[str, Any]:
        """What the service says of itself."""
        return self._request("status")

    def close(self, *, goodbye: bool = True) -> None:
        """Leave; with a goodbye the service gives back what it holds for this rank."""
        self._closing = True
        try:
            if goodbye:
                self._request("goodbye", timeout_s=10.0)
        except (ConnectionError, ServiceError) as error:
            logger.warning("the checkpoint service: %s", error)
        finally:
            if self._wire is not None:
                self._wire.close()

    # --- the connection

    def _joining(self) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "rank": self._rank,
            "ranks": sorted(self._ranks),
            "generation": asdict(self._generation),
        }

    def _join(self, wire: Wire) -> Left | None:
        self._wire = wire
        threading.Thread(target=self._listen, args=(wire,), name="service", daemon=True).start()
        answer = self._request("join", **self._joining())
        fds: list[int] = answer["fds"]
        if not fds:
            return None
        return Left(Arena.attach(fds[0]), answer["slots"], answer["slot_bytes"])

    def _listen(self, wire: Wire) -> None:
        try:
            while (received := wire.receive()) is not None:
                message, fds = received
                answer = self._answers.pop(message.get("number", 0), None)
                if answer is not None:
                    answer.set({**message, "fds": fds})
                    continue
                for fd in fds:
                    os.close(fd)
                if message["kind"] != "answer":
                    self._on_message(message)
        except CheckpointError as error:
            logger.error("the checkpoint service: %s", error)
        wire.close()
        for number in list(self._answers):
            if (waiting := self._answers.pop(number, None)) is not None:
                waiting.set(None)
        if not self._closing and wire is self._wire:
            self._wire = None
            threading.Thread(target=self._recover, name="recover", daemon=True).start()

    def _recover(self) -> None:
        """The service is gone: have another one, and tell it what there is."""
        logger.warning("the checkpoint service of this node is gone: starting it again")
        self._on_message({"kind": "service_lost"})
        pause_s = RETRY_S
        while not self._closing:
            try:
                left = self._join(connect(self._config))
                if left is not None:  # a peer's word for this seat; this process has its own
                    left.arena.close()
                self._tell_all()
                return
            except (ConnectionError, ServiceError) as error:
                logger.warning("starting the checkpoint service: %s", error)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_RETRY_S)

    def _tell_all(self) -> None:
        if self._furniture is not None:
            self._send_arena()
        for layout in self._layouts.values():
            self._request("layout", **dump_layout(layout))
        for snapshot in sorted(self._staged.values(), key=lambda s: s.step):
            self._send("staged", snapshot=dump_snapshot(snapshot))

    def _send_arena(self) -> None:
        assert self._furniture is not None
        arena, slots, slot_bytes = self._furniture
        self._request("arena", fds=(arena.fd,), slots=slots, slot_bytes=slot_bytes)

    def _send(self, kind: str, fds: tuple[int, ...] = (), **fields: Any) -> None:
        wire = self._wire
        if wire is None:
            raise ConnectionError("it is being started again")
        wire.send({"kind": kind, **fields}, fds)

    def _request(
        self, kind: str, *, timeout_s: float = ANSWER_S, fds: tuple[int, ...] = (), **fields: Any
    ) -> dict[str, Any]:
        answer = _Answer()
        with self._lock:
            number = next(self._numbers)
            self._answers[number] = answer
        try:
            self._send(kind, fds, number=number, **fields)
            return answer.get(timeout_s, kind)
        finally:
            self._answers.pop(number, None)


class _Answer:
    """One that is waited for."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._message: dict[str, Any] | None = None

    def set(self, message: dict[str, Any] | None) -> None:
        self._message = message
        self._there.set()

    def get(self, timeout_s: float, kind: str) -> dict[str, Any]:
        if not self._there.wait(timeout_s):
            raise ServiceError(f"no answer to {kind!r} for {timeout_s:.0f} s")
        if self._message is None:
            raise ConnectionError("it is gone")
        if "refused" in self._message:
            raise ServiceError(self._message["refused"])
        return self._message


def _found(plain: dict[str, Any]) -> Found:
    return Found(
        Generation(**plain["generation"]),
        plain["rank"],
        plain["step"],
        plain["slot"],
        plain["digest"],
        plain["state"] == "durable",
    )
