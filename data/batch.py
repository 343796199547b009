"""What the loader delivers, and what a transform is told."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np


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
    """This rank's share of one global step.

    `data` is what `collate` made, or the list of samples; `keys`, `indices` (their numbers in the
    dataset; keys may recur in other shards) and `positions` are theirs, in order; `epoch` is that
    of the first position (a batch may reach into the next epoch).
    """

    data: Any
    keys: tuple[str, ...]
    indices: tuple[int, ...]
    positions: range
    epoch: int
