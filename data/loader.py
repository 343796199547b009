"""The loader: an infinite stream of batches whose whole state is one position."""

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from data.batch import Batch, SampleContext
from data.dataset import Dataset, Sample
from data.errors import DataError, FingerprintError
from data.fetch import Fetcher
from data.order import ORDER, check_seed
from data.prefetch import Prefetcher


class Loader(Iterable[Batch]):
    """Delivers this rank's share of each global step of `global_batch` samples, for ever.

    Every sample comes exactly once per epoch over all ranks; epochs straddle batches. `rank` and
    `world_size` are those of the data-parallel group. `transform(sample, context)` and
    `collate(items)` run in `threads` reader threads (so they must be thread-safe), which work at
    most `prefetch` batches ahead; one batch is one thread's work. None of these, nor the world
    size, changes the order. Raises DataError for an argument that makes no sense.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        global_batch: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        transform: Callable[[Sample, SampleContext], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        prefetch: int = 2,
        threads: int = 2,
    ) -> None:
        _check(dataset, global_batch, rank, world_size, seed, prefetch, threads)
        self._fetcher = Fetcher(dataset, global_batch, rank, world_size, seed, transform, collate)
        self._identity: dict[str, str | int] = {
            "order": ORDER,
            "fingerprint": dataset.fingerprint,
            "seed": seed,
            "samples": len(dataset),
        }
        self._prefetch = prefetch
        self._threads = threads
        self._position = 0
        self._began = False
        self._current: weakref.ref[_Iteration] | None = None
        self.wait_s = 0.0
        """Seconds the consumer waited for the last delivered batch."""
        self.bytes_read = 0
        """Sample bytes of all batches this loader has delivered."""

    def __iter__(self) -> Iterator[Batch]:
        """Go on at the first batch not yet delivered. Ends an earlier iteration of this loader."""
        self._end("another iteration of this loader has begun")
        self._began = True
        prefetcher = Prefetcher(
            self._fetcher.fetch,
            self._position,
            self._fetcher.global_batch,
            depth=self._prefetch,
            threads=self._threads,
        )
        iteration = _Iteration(self, prefetcher)
        self._current = weakref.ref(iteration)
        return iteration

    def state_dict(self) -> dict[str, str | int]:
        """Where the stream stands: the same on every rank, under 200 bytes as JSON.

        `position` counts the samples of all ranks in the batches delivered so far.
        """
        return {**self._identity, "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; world size and batch size may be others than then.

        Raises FingerprintError if it belongs to another stream, DataError if it is no state of a
        loader or iteration has begun.
        """
        if self._began:
            raise DataError("load_state_dict came after iteration began; call it before")
        if set(state) != {*self._identity, "position"}:
            raise DataError(f"not a loader's state: it has the fields {sorted(state)}")
        differences = {k: (state[k], v) for k, v in self._identity.items() if state[k] != v}
        if differences:
            raise FingerprintError(differences)
        position = state["position"]
        if type(position) is not int or position < 0:
            raise DataError(f"not a loader's state: position is {position!r}")
        self._position = position

    def close(self) -> None:
        """Stop the reader threads and wait for them. Iterating again goes on from here."""
        self._end("the loader was closed")

    def _end(self, reason: str) -> None:
        iteration = self._current() if self._current else None
        if iteration is not None:
            iteration.prefetcher.close(reason)
        self._current = None

    def _deliver(self, batch: Batch, size: int, waited: float) -> Batch:
        self._position += self._fetcher.global_batch
        self.bytes_read += size
        self.wait_s = waited
        return batch


class _Iteration(Iterator[Batch]):
    """One pass over a loader. The loader refers to it weakly, so dropping it ends its threads."""

    def __init__(self, loader: Loader, prefetcher: Prefetcher[tuple[Batch, int]]) -> None:
        self.prefetcher = prefetcher
        self._loader = loader

    def __next__(self) -> Batch:
        began = time.perf_counter()
        batch, size = self.prefetcher.next()
        return self._loader._deliver(batch, size, time.perf_counter() - began)


def _check(
    dataset: Dataset,
    global_batch: int,
    rank: int,
    world_size: int,
    seed: int,
    prefetch: int,
    threads: int,
) -> None:
    if len(dataset) == 0:
        raise DataError(f"the dataset has no samples in its {len(dataset.shards)} shards")
    if not 0 <= rank < world_size:
        raise DataError(f"rank must be in 0..world_size-1, got {rank} of {world_size}")
    if global_batch < world_size:
        raise DataError(
            f"global_batch {global_batch} gives some of {world_size} ranks no sample;"
            " it must be at least world_size"
        )
    if prefetch < 1 or threads < 1:
        raise DataError(f"prefetch and threads must be at least 1, got {prefetch} and {threads}")
    try:
        check_seed(seed)
    except ValueError as error:
        raise DataError(str(error)) from error
