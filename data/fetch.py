"""Making one batch: positions to samples to transformed, collated data. Runs in reader threads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.batch import Batch, SampleContext
from data.dataset import Dataset, Sample
from data.errors import DataError, SampleError
from data.order import sample_at
from data.placement import share


@dataclass(frozen=True)
class Fetcher:
    """Makes this rank's batch of any global step; holds no position, so threads may share it."""

    dataset: Dataset
    global_batch: int
    rank: int
    world_size: int
    seed: int
    transform: Callable[[Sample, SampleContext], Any] | None
    collate: Callable[[list[Any]], Any] | None

    def fetch(self, first: int) -> tuple[Batch, int]:
        """The batch of the global step that begins at position `first`, and the bytes it read.

        Raises SampleError for a sample, DataError for a collate that fails.
        """
        n = len(self.dataset)
        positions = share(first, self.global_batch, self.rank, self.world_size)
        wanted = np.arange(positions.start, positions.stop, dtype=np.int64)
        samples = sample_at(wanted, n=n, seed=self.seed).tolist()
        made = [self._make(*pair) for pair in zip(positions, samples, strict=True)]
        keys = tuple(key for _, key, _ in made)
        data = self._collate([item for item, _, _ in made], positions)
        batch = Batch(data, keys, tuple(samples), positions, positions.start // n)
        return batch, sum(size for *_, size in made)

    def _make(self, position: int, index: int) -> tuple[Any, str, int]:
        """(item, key, bytes read) of the sample `index` that stands at `position`."""
        try:
            sample = self.dataset.read(index)
            key = sample["__key__"]
            size = sum(len(value) for value in sample.values() if isinstance(value, bytes))
            if self.transform is None:
                return sample, key, size
            context = SampleContext(position, position // len(self.dataset), self.seed)
            return self.transform(sample, context), key, size
        except Exception as error:
            shard, entry = self.dataset.entry(index)
            raise SampleError(position, entry.key, shard.path, _say(error)) from error

    def _collate(self, items: list[Any], positions: range) -> Any:
        if self.collate is None:
            return items
        try:
            return self.collate(items)
        except Exception as error:
            where = f"positions {positions.start}..{positions.stop - 1}"
            raise DataError(f"collate failed on {where}: {_say(error)}") from error


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
