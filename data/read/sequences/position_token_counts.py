"""The number of tokens of the documents at given positions, from the indexes of their shards."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from data.errors import DataError
from data.order.keyed_permutation import Ints
from data.order.sample_order import MAX_POSITION
from data.read.sample_stream import SampleLocations, SampleStream

_KEPT = 2048  # shards whose counts are kept: 4 bytes a document
_AT_A_TIME = 16  # indexes that are opened in parallel: in a remote store each takes a round trip

NEVER = MAX_POSITION

_Shard: TypeAlias = tuple[int, int]  # number of its dataset, number in it


def _keys(places: SampleLocations) -> list[tuple[int, int, int]]:
    columns = (places.datasets.tolist(), places.shards.tolist(), places.samples.tolist())
    return list(zip(*columns, strict=True))


class TokenCounts:
    """Returns the number of tokens at each position of a stream, with shape (positions,).

    Raises DataError for a dataset without token counts.
    """

    def __init__(self, stream: SampleStream) -> None:
        for dataset in stream.datasets:
            if dataset.manifest.n_tokens is None:
                raise DataError(
                    f"{dataset.manifest.place} has no token counts, which packing requires: index "
                    "the"
                    " dataset with `hpckit data index --tokens` and open its manifest"
                )
        self._stream = stream
        self._left_out: dict[tuple[int, int, int], int] = {}
        """The documents that are left out, by dataset, shard and number in it, with the position
        from which on they are."""
        self._lock = threading.Lock()
        self._known: OrderedDict[_Shard, npt.NDArray[np.uint32]] = OrderedDict()

    def __call__(self, positions: Ints) -> Ints:
        """Return the tokens at these positions; none where a document comes again that was left
        out before."""
        places = self._stream.locate(positions)
        counts = self.at(places)
        if self._left_out:
            first = [self._left_out.get(place, NEVER) for place in _keys(places)]
            counts[positions >= np.array(first, dtype=np.int64)] = 0
        return counts

    def leave_out(self, positions: Ints, begin: int) -> None:
        """Leave out the documents at these positions wherever they come again from position `begin`
        on: they have no tokens there."""
        for place in _keys(self._stream.locate(positions)):
            self._left_out.setdefault(place, begin)

    @property
    def ended(self) -> list[int]:
        """The numbers of the datasets of which no token is left, as all documents that have one are
        left out."""
        if not self._left_out:
            return []
        columns = np.array(list(self._left_out), dtype=np.int64).T
        tokens = np.bincount(columns[0], self.at(SampleLocations(*columns)))
        totals = [dataset.manifest.n_tokens for dataset in self._stream.datasets]
        # fewer than datasets, if no document of the last ones is left out
        each = zip(tokens.tolist(), totals, strict=False)
        return [
            number
            for number, (left_out, total) in enumerate(each)
            if total is not None and left_out >= int(total.sum())
        ]

    def at(self, places: SampleLocations) -> Ints:
        """Return the number of tokens of the samples at `places`. May be called from many
        threads."""
        datasets, shards, samples = places
        counts = np.empty(samples.size, np.int64)
        if not samples.size:
            return counts
        by_shard = np.lexsort((shards, datasets))
        pairs = np.stack([datasets[by_shard], shards[by_shard]], axis=1)
        borders = np.flatnonzero(np.any(np.diff(pairs, axis=0, prepend=-1), axis=1))
        wanted = [(int(dataset), int(shard)) for dataset, shard in pairs[borders]]
        with self._lock:
            self._learn(wanted)
            for shard, part in zip(wanted, np.split(by_shard, borders[1:]), strict=True):
                self._known.move_to_end(shard)
                counts[part] = self._known[shard][samples[part]]
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return counts

    def _learn(self, shards: Sequence[_Shard]) -> None:
        missing = [shard for shard in shards if shard not in self._known]
        if missing:
            with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="hpckit-data-index") as pool:
                self._known.update(zip(missing, pool.map(self._counts, missing), strict=True))

    def _counts(self, shard: _Shard) -> npt.NDArray[np.uint32]:
        dataset = self._stream.datasets[shard[0]]
        index = dataset.manifest.open_shard(shard[1], source=dataset.store.sources)
        counts = index.n_tokens
        if counts is None:
            raise DataError(f"the index of {dataset.manifest.urls[shard[1]]} has no token counts")
        return np.array(counts)
