"""What a reader process does: it makes one batch after another, for the process that started it."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

from data.cache.store import NodeStore
from data.errors import DataError, SampleError
from data.reader.batch import Batch, Times
from data.reader.carried import Carried, carry
from data.reader.faults import Faults
from data.reader.fetch import Fetcher, Work
from data.reader.memory import keep_freed_memory
from data.reader.slot import Parcel, Slot
from data.reader.stream import Stream
from data.reader.together import settle

KEPT_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that Slurm or a terminal sends to all processes of a job: what they mean is for the
trainer to decide, which may want more batches before it ends."""

_PR_SET_PDEATHSIG = 1


class Functions(NamedTuple):
    """The user's part."""

    transform: Callable[..., Any] | None
    collate: Callable[..., Any] | None


class Made(NamedTuple):
    """What has become of one piece of work."""

    batch: Batch | None
    times: Times | None
    error: Carried | None
    faults: tuple[Carried | None, ...]
    """Bad samples, in order; None: a good one came between."""
    counts: tuple[dict[str, float], ...]
    """What the metrics of each store have gone up by."""


@dataclass
class Noted(Faults):
    """Only notes what happens: another process decides what is to be borne."""

    events: list[Carried | None] = field(default_factory=list)

    def good(self) -> None:
        self.events.append(None)

    def bad(self, error: SampleError) -> None:
        if self.policy == "raise":
            raise error
        self.count += 1
        self.events.append(carry(error))


class Inherited(NamedTuple):
    """What a fork has of its parent, and a new Python has not."""

    functions: Functions
    connections: list[Connection]
    """Of all workers, both ends: as long as anybody has one open, the other does not end."""


def serve(connection: Connection, parent: int, depth: int, inherited: Inherited | None) -> None:
    """All that the process does, until `parent` ends or closes its side.

    Over `connection` come a slot that holds the `Fetcher`, and its parcel; then `Work`. There go
    `depth` slots, then the parcel of a `Made` and whether its slot grew for each work, in order,
    in the slots in turn. So a slot is free again once `depth` - 1 more have been asked for.

    Args:
        inherited: of a fork, whose fetcher comes without its functions.
    """
    _begin(parent)
    keep_freed_memory()
    for other in inherited.connections if inherited else ():
        if other is not connection:
            other.close()
    slots = [Slot.make() for _ in range(depth)]
    for slot in slots:
        send_handle(connection, slot.fd, parent)
    maker = _Maker(connection, inherited.functions if inherited else None)
    for number in range(sys.maxsize):
        try:
            work = connection.recv()
        except (EOFError, ConnectionError):
            return
        slot = slots[number % depth]
        grown = slot.grown
        parcel = _put(slot, maker.make(work))
        try:
            connection.send((parcel, slot.grown > grown))
        except ConnectionError:
            return


def stores_of(stream: Stream) -> list[NodeStore]:
    """The stores that a stream reads from, in the same order in every process."""
    return list({id(dataset.store): dataset.store for dataset in stream.datasets}.values())


class _Maker:
    """Makes batches; what goes wrong at the very beginning is told with the first."""

    def __init__(self, connection: Connection, functions: Functions | None) -> None:
        self._error: Exception | None = None
        setup = Slot(recv_handle(connection))
        parcel: Parcel = connection.recv()
        try:
            fetcher: Fetcher = setup.borrow(parcel)
        except Exception as error:  # noqa: BLE001 (the user's modules are imported here)
            self._error = error
            return
        faults = Noted(fetcher.faults.policy)
        more = {} if functions is None else functions._asdict()
        self._fetcher = replace(fetcher, faults=faults, **more)
        self._faults, self._stores = faults, stores_of(fetcher.stream)
        self._counts = [store.metrics.counts() for store in self._stores]
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)  # or each of many processes takes all cores

    def make(self, work: Work | None) -> Made:
        if self._error is not None:
            problem = DataError(f"a reader process cannot begin: {_said(self._error)}")
            problem.__cause__ = self._error
            return Made(None, None, carry(problem), (), ())
        self._faults.events.clear()
        batch = times = told = None
        try:
            if work is None:
                settle(self._fetcher.stream)
            else:
                batch, times = self._fetcher.fetch(work)
        except Exception as error:  # noqa: BLE001 (raised again where the batch is asked for)
            told = carry(error)
        return Made(batch, times, told, tuple(self._faults.events), self._counted())

    def _counted(self) -> tuple[dict[str, float], ...]:
        before, self._counts = self._counts, [store.metrics.counts() for store in self._stores]
        return tuple(_rise(*pair) for pair in zip(before, self._counts, strict=True))


def _begin(parent: int) -> None:
    """The kernel kills this process with the thread that started it (prctl(2))."""
    for number in KEPT_BACK:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, KEPT_BACK)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


def _put(slot: Slot, made: Made) -> Parcel:
    try:
        return slot.put(made)
    except Exception as error:  # noqa: BLE001 (pickling runs code of the user's classes)
        what = "a batch cannot be handed over by a reader process"
        if made.batch is not None and made.batch.positions:
            what = f"{what}, positions {made.batch.positions[0]}..{made.batch.positions[-1]}"
        problem = DataError(f"{what}: {_said(error)}")
        problem.__cause__ = error
        return slot.put(Made(None, None, carry(problem), made.faults, made.counts))


def _rise(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def culprits(named: Sequence[tuple[str, object]]) -> str:
    """Which of some things cannot be pickled, and why, for people."""
    found = []
    for name, thing in named:
        try:
            Slot.make().put(thing)
        except Exception as error:  # noqa: BLE001 (as above)
            found.append(f"{name} ({thing!r}): {_said(error)}")
    return "; ".join(found)
