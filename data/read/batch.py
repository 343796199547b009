"""What the loader delivers, and the context that a transform is given."""

from __future__ import annotations  # else numpy.random would be imported for a name

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from data.order.rank_shares import Bools


@dataclass(frozen=True)
class SampleContext:
    """The place of a sample in the stream, which is the same on any number of ranks and threads."""

    position: int
    epoch: int
    seed: int

    @cached_property
    def rng(self) -> np.random.Generator:
        """Return a generator for augmentation, whose numbers depend on the position only: Philox
        keyed by (seed, position).

        Counter-based: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
        """
        key = np.array([self.seed, self.position], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key))


@dataclass(frozen=True)
class Batch:
    """This rank's share of one global step."""

    data: Any
    """What `collate` returned, or the list of samples."""
    keys: tuple[str, ...]
    """The keys of its samples, in order; other shards may have samples of the same key."""
    indices: tuple[int, ...]
    """The numbers of its samples in their dataset."""
    datasets: tuple[int, ...]
    """The number of each sample's dataset, where several are mixed."""
    positions: tuple[int, ...]
    """The positions of its samples in the stream."""
    mask: Bools
    """False for a sample that only fills the batch and must not count."""
    weight: float
    """Factor on this rank's mean loss which makes the mean over ranks the mean over samples."""
    epoch: int
    """The epoch of the first position; a batch may reach into the next epoch."""
    errors: int
    """Samples that could not be read, and were left out or replaced: see `BadSampleBudget`."""
    bytes: int
    """The bytes of its samples in the shards."""
    step_tokens: tuple[int, ...] = ()
    """The tokens of the global step, over all ranks, of each dataset of a mixture whose documents
    are packed; else empty."""
    seen: int = 0
    """The samples (with `pack`: sequences) of all global steps before this one, over all ranks."""
    step_samples: int = 0
    """The samples (sequences) of this global step, over all ranks."""


class BatchTimes(NamedTuple):
    """The seconds that a reader spent on a batch."""

    read_s: float
    """Seconds of reading, including waiting for downloads."""
    transform_s: float
    """Seconds of transforms and collate."""
    grown: int = 0
    """1 if the shared memory through which it was handed over was too small."""
