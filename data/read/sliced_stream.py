"""A stream with only some of each epoch's samples, which are chosen by their number in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data.errors import DataError, FingerprintError
from data.order.grown_order import DatasetVersion
from data.order.keyed_permutation import Ints
from data.order.rank_shares import Numbers
from data.order.sample_order import MAX_POSITION, Order
from data.order.shard_uses import ShardUse
from data.read.dataset import Dataset
from data.read.sample_stream import Reads, SampleLocations, SampleStream
from data.read.stream_identity import State

_FIELD = "slice"  # of the identity


class BlockSlice(NamedTuple):
    """The blocks `start`, `start + step`, … below `stop` of each epoch, of `block` samples each.

    The last block of an epoch has fewer samples where `block` does not divide it.
    """

    start: int
    stop: int | None
    step: int
    block: int = 1


class SlicedStream:
    """The samples of `stream` that are in a slice of each of its epochs, which it counts on its
    own.

    Positions count the chosen samples, over all ranks, so that the same samples come on any number
    of ranks. Raises DataError if nothing is chosen, or if the stream has no epochs.
    """

    def __init__(self, stream: SampleStream, chosen: BlockSlice) -> None:
        if stream.samples == MAX_POSITION:
            raise DataError(
                "slice() needs epochs, which a mixture does not have: end after a number of items, "
                "with_epoch()"
            )
        self._stream, self._slice = stream, chosen
        self._epoch = stream.samples
        blocks = -(-self._epoch // chosen.block)
        stop = blocks if chosen.stop is None else min(chosen.stop, blocks)
        self._blocks = len(range(chosen.start, stop, chosen.step))
        if not self._blocks:
            raise DataError(
                f"slice({chosen.start}, {chosen.stop}, {chosen.step}) chooses nothing of {blocks}"
            )
        last = chosen.start + (self._blocks - 1) * chosen.step
        missing = blocks * chosen.block - self._epoch if last == blocks - 1 else 0
        self._samples = self._blocks * chosen.block - missing

    @property
    def datasets(self) -> Sequence[Dataset]:
        return self._stream.datasets

    @property
    def orders(self) -> Sequence[Order]:
        return self._stream.orders

    @property
    def seed(self) -> int:
        return self._stream.seed

    @property
    def samples(self) -> int:
        return self._samples

    @property
    def versions(self) -> Sequence[DatasetVersion]:
        return self._stream.versions

    def epoch_of(self, position: int) -> int:
        return position // self._samples

    def epoch_begin(self, epoch: int) -> int:
        return epoch * self._samples

    @property
    def streams(self) -> int:
        return self._stream.streams

    @property
    def identity(self) -> dict[str, Any]:
        fields = self._stream.identity
        return {**fields, _FIELD: [*fields.get(_FIELD, []), list(self._slice)]}

    def locate(self, positions: Ints) -> SampleLocations:
        return self._stream.locate(self._outer(positions))

    def stream_of(self, positions: npt.ArrayLike) -> Ints:
        return self._stream.stream_of(self._outer(positions))

    def placement_of(self, positions: npt.ArrayLike) -> Numbers:
        return self._stream.placement_of(self._outer(positions))

    def entries_of(self, position: int, size: int, steps: int, entries: range) -> None:
        return None  # chosen samples are not those of every V-th position

    def streams_of(self, rank: int, world: int, size: int) -> Sequence[range]:
        if self._slice.step == 1:
            return self._stream.streams_of(rank, world, size)
        return [range(order.streams) for order in self.orders]

    def ahead(self, position: int, streams: Reads = None) -> Iterator[tuple[int, ShardUse]]:
        """Yield the uses of shards that have chosen samples. Ends where a whole epoch has none."""
        at = int(self._outer(position))
        fruitless_from = at
        for number, use in self._stream.ahead(at, streams):
            first, last = self._inner(use.first), self._inner(use.last + 1) - 1
            if first <= last:
                fruitless_from = use.first
                yield number, ShardUse(max(first, position), last, use.shard)
            elif use.first - fruitless_from > 2 * self._epoch:
                return

    @property
    def borders(self) -> Sequence[int]:
        return ()  # the stream has epochs, and so is no mixture

    def restored(self, state: State) -> SampleStream:
        return SlicedStream(self._stream.restored(self._inner_state(state)), self._slice)

    def resumed(self, state: State, position: int) -> SampleStream:
        saved, outer = self._inner_state(state), int(self._outer(position))
        return SlicedStream(self._stream.resumed(saved, outer), self._slice)

    def _inner_state(self, state: State) -> State:
        """Return the state of the whole stream. Raises FingerprintError if the slice differs."""
        mine = self.identity[_FIELD]
        saved = dict(state)
        found = saved.pop(_FIELD, None)
        if found != mine:
            raise FingerprintError({_FIELD: (found, mine)})
        if mine[:-1]:
            saved[_FIELD] = mine[:-1]
        return saved

    def _outer(self, positions: npt.ArrayLike) -> Ints:
        """Return the positions in the whole stream."""
        of = self._slice
        epoch, number = np.divmod(np.asarray(positions, dtype=np.int64), self._samples)
        block, rest = np.divmod(number, of.block)
        found: Ints = epoch * self._epoch + (of.start + block * of.step) * of.block + rest
        return found

    def _inner(self, position: int) -> int:
        """Return how many chosen samples come before a position of the whole stream."""
        of = self._slice
        epoch, offset = divmod(position, self._epoch)
        block, rest = divmod(offset, of.block)
        before = min(max(0, -(-(block - of.start) // of.step)), self._blocks)
        is_chosen = block >= of.start and (block - of.start) % of.step == 0
        within = rest if is_chosen and before < self._blocks else 0
        return epoch * self._samples + min(before * of.block + within, self._samples)
