"""The main function of a reader process, which makes batches for the process that started it."""

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
from data.read.batches.batch_fetcher import BatchFetcher, BatchWork, keep_freed_memory
from data.read.batches.parallel_open import await_verification
from data.read.processes.remote_errors import RemoteErrorRecord, record_error
from data.read.processes.shared_memory_slot import PickleLayout, SharedMemorySlot
from data.read.sample_stream import SampleStream

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that Slurm or a terminal sends to all processes of a job. The trainer decides how to
react, and may need more batches before it ends."""

_PR_SET_PDEATHSIG = 1


class UserFunctions(NamedTuple):
    """The user's transform and collate."""

    transform: Callable[..., Any] | None
    collate: Callable[..., Any] | None


class BatchResult(NamedTuple):
    """The result of one piece of work."""

    batch: Batch | None
    times: BatchTimes | None
    error: RemoteErrorRecord | None
    faults: tuple[RemoteErrorRecord | None, ...]
    """Bad samples, in order; None stands for good ones in between."""
    counts: tuple[dict[str, float], ...]
    """The increase of the metrics of each store."""


@dataclass
class BadSampleRecorder(BadSampleBudget):
    """Records good and bad samples; the parent process decides which errors are accepted."""

    events: list[RemoteErrorRecord | None] = field(default_factory=list)

    def good(self) -> None:
        self.events.append(None)

    def bad(self, error: SampleError) -> None:
        if self.policy == "raise":
            raise error
        self.count += 1
        self.events.append(record_error(error))


class ForkInheritance(NamedTuple):
    """The objects that a forked process inherits and a spawned one does not."""

    functions: UserFunctions
    connections: list[Connection]
    """The connections of all workers, both ends: they must be closed here, as a connection only
    ends when no process has its other end open."""


def serve(
    connection: Connection, parent: int, depth: int, inherited: ForkInheritance | None
) -> None:
    """Run the reader process, until `parent` ends or closes its side.

    Over `connection` it receives a slot that holds the `BatchFetcher`, and its layout; then
    `BatchWork`. It sends `depth` slots, then for each work, in order, the layout of a `BatchResult`
    and whether its slot grew; the slots are used in turn. So a slot is free again once `depth` - 1
    more batches have been asked for.

    Args:
        inherited: of a forked process, whose fetcher comes without the user's functions.
    """
    _begin(parent)
    keep_freed_memory()
    for other in inherited.connections if inherited else ():
        if other is not connection:
            other.close()
    slots = [SharedMemorySlot.make() for _ in range(depth)]
    for slot in slots:
        send_handle(connection, slot.fd, parent)
    maker = _BatchMaker(connection, inherited.functions if inherited else None)
    for number in range(sys.maxsize):
        try:
            work = connection.recv()
        except (EOFError, ConnectionError):
            return
        slot = slots[number % depth]
        grown = slot.grown
        layout = _put(slot, maker.make(work))
        try:
            connection.send((layout, slot.grown > grown))
        except ConnectionError:
            return


def stores_of(stream: SampleStream) -> list[NodeStore]:
    """Return the stores that a stream reads from, in the same order in every process."""
    return list({id(dataset.store): dataset.store for dataset in stream.datasets}.values())


class _BatchMaker:
    """Makes batches; an error during setup is reported with the first batch."""

    def __init__(self, connection: Connection, functions: UserFunctions | None) -> None:
        self._error: Exception | None = None
        setup = SharedMemorySlot(recv_handle(connection))
        layout: PickleLayout = connection.recv()
        try:
            fetcher: BatchFetcher = setup.borrow(layout)
        except Exception as error:  # noqa: BLE001 (the user's modules are imported here)
            self._error = error
            return
        faults = BadSampleRecorder(fetcher.faults.policy)
        more = {} if functions is None else functions._asdict()
        self._fetcher = replace(fetcher, faults=faults, **more)
        self._faults, self._stores = faults, stores_of(fetcher.stream)
        self._counts = [store.metrics.counts() for store in self._stores]
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)  # else each of many processes would use all cores

    def make(self, work: BatchWork | None) -> BatchResult:
        if self._error is not None:
            problem = DataError(f"a reader process cannot start: {_describe(self._error)}")
            problem.__cause__ = self._error
            return BatchResult(None, None, record_error(problem), (), ())
        self._faults.events.clear()
        batch = times = failure = None
        try:
            if work is None:
                await_verification(self._fetcher.stream)
            else:
                batch, times = self._fetcher.fetch(work)
        except Exception as error:  # noqa: BLE001 (raised again where the batch is asked for)
            failure = record_error(error)
        return BatchResult(batch, times, failure, tuple(self._faults.events), self._counted())

    def _counted(self) -> tuple[dict[str, float], ...]:
        before, self._counts = self._counts, [store.metrics.counts() for store in self._stores]
        return tuple(_increase(*pair) for pair in zip(before, self._counts, strict=True))


def _begin(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends (prctl(2))."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


def _put(slot: SharedMemorySlot, made: BatchResult) -> PickleLayout:
    try:
        return slot.put(made)
    except Exception as error:  # noqa: BLE001 (pickling runs code of the user's classes)
        what = "a reader process cannot send a batch"
        if made.batch is not None and made.batch.positions:
            what = f"{what}, positions {made.batch.positions[0]}..{made.batch.positions[-1]}"
        problem = DataError(f"{what}: {_describe(error)}")
        problem.__cause__ = error
        return slot.put(BatchResult(None, None, record_error(problem), made.faults, made.counts))


def _increase(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def describe_unpicklable(named: Sequence[tuple[str, object]]) -> str:
    """Describe which of some objects cannot be pickled, and why."""
    found = []
    for name, thing in named:
        try:
            SharedMemorySlot.make().put(thing)
        except Exception as error:  # noqa: BLE001 (as above)
            found.append(f"{name} ({thing!r}): {_describe(error)}")
    return "; ".join(found)
