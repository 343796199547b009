"""What the loader delivers, and what a transform is told."""

from __future__ import annotations  # or numpy.random would be imported for a name

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from data.order.rank_shares import Bools


@dataclass(frozen=True)
class SampleContext:
    """Where in the stream a sample stands: the same on any number of ranks and threads."""

    position: int
    epoch: int
    seed: int

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator of this position's own, for augmentation: Philox keyed by (seed, position).

        Counter-based: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
        """
        key = np.array([self.seed, self.position], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key))


@dataclass(frozen=True)
class Batch:
    """This rank's share of one global step."""

    data: Any
    """What `collate` made, or the list of samples."""
    keys: tuple[str, ...]
    """Of its samples, in order; they may recur in other shards."""
    indices: tuple[int, ...]
    """Their numbers in their dataset."""
    datasets: tuple[int, ...]
    """The number of each one's dataset, where several are mixed."""
    positions: tuple[int, ...]
    """Their positions in the stream."""
    mask: Bools
    """False for a sample that only fills the batch, and counts for nothing."""
    weight: float
    """Factor on this rank's mean loss which makes the mean over ranks the mean over samples."""
    epoch: int
    """That of the first position; a batch may reach into the next epoch."""
    errors: int
    """Samples that could not be read, and were left out or replaced: see `Faults`."""
    bytes: int
    """Of its samples, as they lie in the shards."""


class BatchTimes(NamedTuple):
    """Seconds that a reader spent on a batch."""

    read_s: float
    """Waiting for downloads included."""
    transform_s: float
    """Transforms and collate."""
    grown: int = 0
    """1 if the shared memory that it was handed over in did not suffice."""
