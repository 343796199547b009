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

from data.cache.node_store import NodeStore
from data.errors import DataError, SampleError
from data.read.bad_samples import BadSampleBudget
from data.read.batch import Batch, BatchTimes
from data.read.batches.batch_fetcher import BatchFetcher, BatchWork
from data.read.batches.parallel_open import await_verification
from data.read.freed_memory import keep_freed_memory
from data.read.processes.remote_errors import RemoteErrorRecord, record_error
from data.read.processes.shared_memory_slot import PickleLayout, SharedMemorySlot
from data.read.sample_stream import SampleStream

KEPT_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that Slurm or a terminal sends to all processes of a job: what they mean is for the
trainer to decide, which may want more batches before it ends."""

_PR_SET_PDEATHSIG = 1


class UserFunctions(NamedTuple):
    """The user's part."""

    transform: Callable[..., Any] | None
    collate: Callable[..., Any] | None


class BatchResult(NamedTuple):
    """What has become of one piece of work."""

    batch: Batch | None
    times: BatchTimes | None
    error: RemoteErrorRecord | None
    faults: tuple[RemoteErrorRecord | None, ...]
    """Bad samples, in order; None: a good one came between."""
    counts: tuple[dict[str, float], ...]
    """What the metrics of each store have gone up by."""


@dataclass
class BadSampleRecorder(BadSampleBudget):
    """Only notes what happens: another process decides what is to be borne."""

    events: list[RemoteErrorRecord | None] = field(default_factory=list)

    def good(self) -> None:
        self.events.append(None)

    def bad(self, error: SampleError) -> None:
        if self.policy == "raise":
            raise error
        self.count += 1
        self.events.append(record_error(error))


class ForkInheritance(NamedTuple):
    """What a fork has of its parent, and a new Python has not."""

    functions: UserFunctions
    connections: list[Connection]
    """Of all workers, both ends: as long as anybody has one open, the other does not end."""


def serve(
    connection: Connection, parent: int, depth: int, inherited: ForkInheritance | None
) -> None:
    """All that the process does, until `parent` ends or closes its side.

    Over `connection` come a slot that holds the `BatchFetcher`, and its parcel; then `BatchWork`.
    There go `depth` slots, then the parcel of a `BatchResult` and whether its slot grew for each
    work, in order, in the slots in turn. So a slot is free again once `depth` - 1 more have been
    asked for.

    Args:
        inherited: of a fork, whose fetcher comes without its functions.
    """
    _begin(parent)
    keep_freed_memory()
    for other in inherited.connections if inherited else ():
        if other is not connection:
            other.close()
    slots = [SharedMemorySlot.make() for _ in range(depth)]
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


def stores_of(stream: SampleStream) -> list[NodeStore]:
    """The stores that a stream reads from, in the same order in every process."""
    return list({id(dataset.store): dataset.store for dataset in stream.datasets}.values())


class _Maker:
    """Makes batches; what goes wrong at the very beginning is told with the first."""

    def __init__(self, connection: Connection, functions: UserFunctions | None) -> None:
        self._error: Exception | None = None
        setup = SharedMemorySlot(recv_handle(connection))
        parcel: PickleLayout = connection.recv()
        try:
            fetcher: BatchFetcher = setup.borrow(parcel)
        except Exception as error:  # noqa: BLE001 (the user's modules are imported here)
            self._error = error
            return
        faults = BadSampleRecorder(fetcher.faults.policy)
        more = {} if functions is None else functions._asdict()
        self._fetcher = replace(fetcher, faults=faults, **more)
        self._faults, self._stores = faults, stores_of(fetcher.stream)
        self._counts = [store.metrics.counts() for store in self._stores]
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)  # or each of many processes takes all cores

    def make(self, work: BatchWork | None) -> BatchResult:
        if self._error is not None:
            problem = DataError(f"a reader process cannot begin: {_said(self._error)}")
            problem.__cause__ = self._error
            return BatchResult(None, None, record_error(problem), (), ())
        self._faults.events.clear()
        batch = times = told = None
        try:
            if work is None:
                await_verification(self._fetcher.stream)
            else:
                batch, times = self._fetcher.fetch(work)
        except Exception as error:  # noqa: BLE001 (raised again where the batch is asked for)
            told = record_error(error)
        return BatchResult(batch, times, told, tuple(self._faults.events), self._counted())

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


def _put(slot: SharedMemorySlot, made: BatchResult) -> PickleLayout:
    try:
        return slot.put(made)
    except Exception as error:  # noqa: BLE001 (pickling runs code of the user's classes)
        what = "a batch cannot be handed over by a reader process"
        if made.batch is not None and made.batch.positions:
            what = f"{what}, positions {made.batch.positions[0]}..{made.batch.positions[-1]}"
        problem = DataError(f"{what}: {_said(error)}")
        problem.__cause__ = error
        return slot.put(BatchResult(None, None, record_error(problem), made.faults, made.counts))


def _rise(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def culprits(named: Sequence[tuple[str, object]]) -> str:
    """Which of some things cannot be pickled, and why, for people."""
    found = []
    for name, thing in named:
        try:
            SharedMemorySlot.make().put(thing)
        except Exception as error:  # noqa: BLE001 (as above)
            found.append(f"{name} ({thing!r}): {_said(error)}")
    return "; ".join(found)
