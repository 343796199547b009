"""Nodes of trainers without torch: what they stage is a function of rank and step."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import ServiceError
from checkpointing.format.object_keys import new_session
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.service.client.service_lookup import status
from checkpointing.service.config import Budget, ServiceConfig
from checkpointing.service.protocol.socket_address import address
from checkpointing.service.snapshots import Generation, RankSnapshot, SlotBox, SnapshotLayout
from checkpointing.staging.arena import Arena
from checkpointing.store.catalog import CatalogEntry, committed
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.inspection.integrity_check import verify
from checkpointing.store.store import Store

WITHIN_S = 180.0  # generous: nothing here is about speed
RUN = "r"
COLUMNS = 256
Cells = NDArray[np.float32]


def generation(world_size: int) -> Generation:
    return Generation(new_session(), world_size)


def config(store: Path | str, node: str = "a", **changes: Any) -> ServiceConfig:
    budget = Budget(cpu=1, nice=0, bytes_per_s=changes.pop("bytes_per_s", None))
    return ServiceConfig(url=str(store), run=RUN, node=node, budget=budget, **changes)


def content(rank: int, step: int, rows: int) -> Cells:
    """Noise, so that nothing of it is small in the store; all ranks and steps differ."""
    rng = np.random.default_rng([rank, step])
    return rng.standard_normal((rows, COLUMNS), dtype=np.float32)


def layout(rank: int, world_size: int, rows: int) -> SnapshotLayout:
    shape, box = (rows * world_size, COLUMNS), (rows, COLUMNS)
    place = SlotBox("model/w", "float32", shape, (rank * rows, 0), box, 0)
    return SnapshotLayout(f"digest-{rank}-{rows}", (place,))


def until(condition: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        time.sleep(0.01)


_trainers: list[Trainer] = []  # that were started and not closed


class Trainer:
    """One rank. Its client may be used directly, too."""

    def __init__(
        self,
        config: ServiceConfig,
        rank: int,
        ranks: frozenset[int],
        generation: Generation,
        *,
        rows: int = 64,
        slots: int = 2,
    ) -> None:
        self.rank, self.generation, self.rows = rank, generation, rows
        self.heard: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self.client = ServiceClient(config, rank, ranks, generation, self._hear)
        self.layout = layout(rank, generation.world_size, rows)
        self.slots, self.slot_bytes = slots, self.layout.end
        self.arena: Arena | None = None
        _trainers.append(self)

    def register_arena(self) -> None:
        self.arena = Arena.create(self.slots * self.slot_bytes)
        self.client.register_arena(self.arena, self.slots, self.slot_bytes)
        self.client.layout(self.layout)

    def fill(self, step: int, slot: int) -> RankSnapshot:
        assert self.arena is not None
        view = self.arena.view(slot * self.slot_bytes, self.slot_bytes).view(np.float32)
        view[:] = content(self.rank, step, self.rows).reshape(-1)
        values = {"extra/step": step} if self.rank == 0 else {}
        return RankSnapshot(
            self.generation, self.rank, step, slot, self.layout, values, {"loss": 1.0}, time.time()
        )

    def save(self, step: int) -> bool:
        """Whether there was a slot."""
        slot = self.client.claim(step)
        if slot is None:
            return False
        self.client.staged(self.fill(step, slot))
        return True

    def save_when_possible(self, step: int) -> None:
        """To say that it skips the step would be the truth only if it did not try again."""
        until(lambda: self.client.is_connected, "its service is there")
        until(lambda: self.save(step), f"rank {self.rank} has a slot for step {step}")

    def hears(self, kind: str, step: int) -> None:
        try:
            until(lambda: step in self.steps(kind), f"step {step} is {kind}")
        except AssertionError as error:
            link = "connected" if self.client.is_connected else "not connected"
            config = self.client._config
            services = told_by_services(address(config.url, config.run, config.node).parent)
            raise AssertionError(
                f"rank {self.rank}, {link}: {error}; {self.heard[-8:]}; {services}"
            ) from error

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        with self._lock:
            return [message for message in self.heard if message["kind"] == kind]

    def steps(self, kind: str) -> list[int]:
        return [message["step"] for message in self.kinds(kind)]

    def close(self, *, goodbye: bool = True) -> None:
        with suppress(ValueError):
            _trainers.remove(self)
        self.client.close(goodbye=goodbye)
        if self.arena is not None:
            self.arena.close()

    def _hear(self, message: dict[str, Any]) -> None:
        with self._lock:
            self.heard.append(message)


@dataclass
class Nodes:
    """All trainers of a generation."""

    configs: Mapping[str, ServiceConfig]  # by node
    trainers: list[Trainer] = field(default_factory=list)

    @classmethod
    def start(
        cls, configs: Mapping[str, ServiceConfig], per_node: int, *, rows: int = 64, slots: int = 2
    ) -> Nodes:
        nodes, made = cls(configs), generation(len(configs) * per_node)
        for index, config in enumerate(configs.values()):
            ranks = range(index * per_node, (index + 1) * per_node)
            for rank in ranks:
                trainer = Trainer(config, rank, frozenset(ranks), made, rows=rows, slots=slots)
                nodes.trainers.append(trainer)
        for trainer in nodes.trainers:
            trainer.register_arena()
        return nodes

    def save(self, step: int) -> None:
        """On all ranks, as soon as each has a slot."""
        for trainer in self.trainers:
            trainer.save_when_possible(step)

    def kill(self, node: str) -> None:
        """The service of a node; its trainers know it then."""
        mine = [t for t in self.trainers if t.client._config is self.configs[node]]
        before = [len(trainer.kinds("service_lost")) for trainer in mine]
        assert kill(self.configs[node]) is not None
        for trainer, lost in zip(mine, before, strict=True):
            until(lambda t=trainer, n=lost: len(t.kinds("service_lost")) > n, "it is noticed")  # type: ignore[misc]

    def await_commit(self, step: int) -> None:
        for trainer in self.trainers:
            trainer.hears("committed", step)

    def close(self, *, goodbye: bool = True) -> None:
        for trainer in self.trainers:
            trainer.close(goodbye=goodbye)


def pid_of(config: ServiceConfig) -> int | None:
    """The service's process; None if there is none."""
    found = status_of(config)
    return None if found is None else int(found["pid"])


def status_of(config: ServiceConfig) -> dict[str, Any] | None:
    """What the service says of itself, also where the machine lets it answer late; None if there is
    none."""
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        try:
            return status(address(config.url, config.run, config.node))
        except ServiceError:  # it is busy, or has just ended
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)


def kill(config: ServiceConfig, how: signal.Signals = signal.SIGKILL) -> int | None:
    pid = pid_of(config)
    if pid is not None:
        os.kill(pid, how)
    return pid


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def saved(store: Path) -> dict[int, CatalogEntry]:
    """Committed checkpoints by step, each the newest of its step."""
    try:
        opened = Store.open(store)
    except FileNotFoundError:  # no service has made it yet
        return {}
    found, unreadable = committed(opened, RUN)
    assert not unreadable
    return {one.stored.save.step: one for one in sorted(found, key=lambda one: one.stored)}


def assert_exact(store: Path, step: int, world_size: int, rows: int = 64) -> None:
    opened, found = Store.open(store), saved(store)[step]
    checkpoint = Checkpoint(opened, found.stored)
    expected = np.concatenate([content(rank, step, rows) for rank in range(world_size)])
    got = checkpoint.read("model/w").view(np.float32)
    assert np.array_equal(got, expected)
    assert checkpoint.values() == {"extra/step": step}
    assert verify(opened, found) == []


def leftovers(folder: Path) -> list[str]:
    """Files of services that have ended."""
    return sorted(path.name for path in folder.iterdir())


def told_by_services(folder: Path) -> str:
    """What services whose sockets are in `folder` say of themselves, and have logged."""
    said = []
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".sock":
            with suppress(ServiceError):
                said.append(f"{path.name}: {status(path)}")
        elif path.suffix == ".log":
            said.append(f"{path.name}:\n{path.read_text()}")
    return "\n".join([f"processes {services(folder)}", *said])


_memfds_before: Counter[str] = Counter()  # that tests before this one have left


def note_memfds() -> None:
    """What is there now is none of this test's."""
    _memfds_before.clear()
    _memfds_before.update(memfds())


def memfds(pid: int | None = None) -> list[str]:
    """Arenas that a process holds a descriptor of; None: this test."""
    found: Counter[str] = Counter()
    for fd in Path(f"/proc/{pid or 'self'}/fd").iterdir():
        try:
            target = str(fd.readlink())
        except FileNotFoundError:
            continue
        if re.search("memfd:hpckit-(arena|replica|revived)", target):
            found[target] += 1
    return list((found if pid else found - _memfds_before).elements())


def assert_nothing_held() -> None:
    """This test has no descriptor of an arena any more, as soon as threads that end have ended."""
    until(lambda: memfds() == [], "all arenas are closed")


def end_all(folder: Path) -> None:
    """Whatever a test has left: its trainers, then the services whose sockets are in `folder`."""
    while _trainers:
        _trainers.pop().close(goodbye=False)
    for pid in services(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def services(folder: Path, socket: str = "") -> list[int]:
    """Processes of services with sockets in `folder`, or with this one, also of those that answer
    nothing."""
    found = []
    for proc in Path("/proc").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError, NotADirectoryError):
            command = (proc / "cmdline").read_bytes().split(b"\0")
            if b"checkpointing.service" in command and any(
                os.fsencode(f"{folder}/{socket}") in word for word in command
            ):
                found.append(int(proc.name))
    return found


def nodes_at(store: Path, count: int = 2, **changes: Any) -> dict[str, ServiceConfig]:
    base = config(store, **changes)
    return {name: replace(base, node=name) for name in "abc"[:count]}
