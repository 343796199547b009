"""The order of a dataset that has grown: each version of it is read in whole epochs.

A version has the first shards of the next one. It is read from its begin, where an epoch of the one
before ends, and numbers of epochs continue. So the positions of an epoch that has begun keep their
samples, bit for bit, and those of the next epochs are those of the larger dataset.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import Ints
from data.order.sample_order import EpochLookup, Order, OrderPart


class DatasetVersion(NamedTuple):
    """A version of a dataset, from a position of the stream on."""

    begin: int
    """The position at which it begins."""
    epoch: int
    """The number of the epoch that begins there."""
    shards: int
    """How many of the shards it has: the first ones."""
    fingerprint: str
    """As of the manifest of these shards."""


class GrownOrder(Order):
    """The order of the newest of several versions of a dataset, and of the others before it.

    Raises ValueError for versions that do not follow each other at the ends of epochs.
    """

    def __init__(self, newest: Order, versions: Sequence[DatasetVersion]) -> None:
        super().__init__(
            newest.counts,
            seed=newest.seed,
            streams=newest.streams,
            window=newest.window,
            shuffle=newest.shuffle,
            remix_every=newest.remix_every,
        )
        self.versions = tuple(versions)
        self._begins = [version.begin for version in versions]
        self._parts = [newest.of_first(version.shards) for version in versions]
        _check(self.versions, self._parts)

    def lookups(self, positions: Ints) -> Iterator[EpochLookup]:
        for number, mine in self._by_version(positions):
            here = np.flatnonzero(mine)
            for lookup in self._parts[number].lookups(positions[here] - self._shift(number)):
                yield replace(lookup, here=here[lookup.here])

    def streams_at(self, positions: Ints) -> Ints:
        streams = np.empty_like(positions)
        for number, mine in self._by_version(positions):
            streams[mine] = self._parts[number].streams_at(positions[mine] - self._shift(number))
        return streams

    def entries_of(self, position: int, size: int, steps: int, entries: range) -> Ints | None:
        number = bisect_right(self._begins, position) - 1
        if number < bisect_right(self._begins, position + steps * size - 1) - 1:
            return None  # they are of several versions
        shift = self._shift(number)
        found = self._parts[number].entries_of(position - shift, size, steps, entries)
        return None if found is None else found + shift

    def epoch_of(self, position: int) -> int:
        number = bisect_right(self._begins, position) - 1
        return (position - self._shift(number)) // self._parts[number].samples

    def epochs_of(self, positions: Ints) -> Ints:
        epochs = np.empty_like(positions)
        for number, mine in self._by_version(positions):
            within = positions[mine] - self._shift(number)
            epochs[mine] = within // self._parts[number].samples
        return epochs

    def positions_in(self, epoch: int, shards: Ints, samples: Ints) -> Ints:
        number = self._version_at(epoch)
        found: Ints = self._parts[number].positions_in(epoch, shards, samples)
        return found + self._shift(number)

    @property
    def last_change(self) -> int:
        return self.versions[-1].epoch - 1

    def epoch_begin(self, epoch: int) -> int:
        number = self._version_at(epoch)
        return epoch * self._parts[number].samples + self._shift(number)

    def parts_from(self, position: int) -> Iterator[OrderPart]:
        first = bisect_right(self._begins, position) - 1
        for number in range(first, len(self.versions)):
            later = self.versions[number + 1 : number + 2]
            end = later[0].epoch if later else None
            begin = self.versions[number].begin
            yield OrderPart(self._parts[number], self._shift(number), begin, end)

    def _version_at(self, epoch: int) -> int:
        """Return the number of the version that an epoch is of."""
        return bisect_right([version.epoch for version in self.versions], epoch) - 1

    def _by_version(self, positions: Ints) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        numbers = np.searchsorted(self._begins, positions, side="right") - 1
        for number in np.unique(numbers).tolist():
            yield number, numbers == number

    def _shift(self, number: int) -> int:
        """Return what a position is more than in the order of a version alone."""
        version = self.versions[number]
        return version.begin - version.epoch * self._parts[number].samples


def with_version(
    versions: Sequence[DatasetVersion],
    samples: Sequence[int],
    position: int,
    newest: tuple[int, str],
) -> list[DatasetVersion]:
    """Return the versions of a stream that is at `position` and goes on with a larger dataset:
    from the next epoch on, or from `position` on where an epoch begins there.

    Args:
        versions: so far, the first one from 0 on. One that has not begun is replaced.
        samples: of each of them.
        newest: the shards and the fingerprint of the larger dataset.
    """
    begun = [version for version in versions if version.begin <= position]
    last, size = begun[-1], samples[len(begun) - 1]
    epochs = -(-(position - last.begin) // size)
    added = DatasetVersion(last.begin + epochs * size, last.epoch + epochs, *newest)
    return [*(begun if epochs else begun[:-1]), added]


def _check(versions: Sequence[DatasetVersion], parts: Sequence[Order]) -> None:
    begin = epoch = 0
    for number, (version, part) in enumerate(zip(versions, parts, strict=True)):
        if (version.begin, version.epoch) != (begin, epoch):
            raise ValueError(f"version {number} of the dataset begins inside an epoch: {version}")
        if number + 1 < len(versions):
            epochs = versions[number + 1].epoch - version.epoch
            if epochs < 1:
                raise ValueError(f"version {number} of the dataset has no epoch")
            begin, epoch = begin + epochs * part.samples, epoch + epochs
