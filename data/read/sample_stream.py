"""The streams that a loader reads: one dataset in its order, or several under a mixture."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import fields, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from data.errors import DataError, EmptyDatasetError, FingerprintError
from data.keyword_options import checks_arguments
from data.order.grown_order import DatasetVersion, GrownOrder, with_version
from data.order.keyed_permutation import Ints
from data.order.mixed.mixed_order import MixedOrder
from data.order.mixture import Mixture, MixtureSegment, Weight, continued, same_until, segment
from data.order.mixture_blocks import MIX_ORDERS, PARTS
from data.order.rank_shares import Numbers, mixed_streams_of_rank, streams_of_ranks
from data.order.recurring_skips import MixedSkips, RecurringSkips
from data.order.sample_order import Order, OrderOptions
from data.order.shard_uses import NEVER, ShardUse, uses_ahead
from data.order.skipped_ranges import SkippedRanges
from data.read.dataset import Dataset
from data.read.dataset_growth import DatasetGrowth, grown_error, versions_of
from data.read.stream_identity import State, check_same, digest_of, digests_of, of_dataset
from data.read.stream_sizes import STREAMS, WINDOW, stream_sizes
from data.source.address import masked


class SampleLocations(NamedTuple):
    """The places of the samples at some positions; each field has the shape of these."""

    datasets: Ints
    shards: Ints
    samples: Ints


LocatedEntries: TypeAlias = tuple[Ints, SampleLocations]
"""The positions of entries of steps and where their samples are, with shape (steps, entries)."""

Reads: TypeAlias = Sequence[Collection[int]] | None
"""The streams of each dataset that are read; None: all."""

StagePlan: TypeAlias = Callable[
    [Sequence[MixtureSegment], int], Sequence[tuple[int, Sequence[Weight]]]
]
"""Returns the stages from a position on, the first of which is in force there, of a mixture that
had these segments before it."""


class SampleStream(Protocol):
    """An endless sequence of samples, the same on any number of ranks."""

    @property
    def datasets(self) -> Sequence[Dataset]: ...

    @property
    def orders(self) -> Sequence[Order]:
        """The order of each dataset."""

    @property
    def seed(self) -> int: ...

    @property
    def samples(self) -> int:
        """The number of samples of an epoch."""

    @property
    def streams(self) -> int:
        """The number of virtual streams that take turns."""

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of the stream, as JSON values."""

    def locate(self, positions: Ints) -> SampleLocations: ...

    def stream_of(self, positions: npt.ArrayLike) -> Ints: ...

    def placement_of(self, positions: npt.ArrayLike) -> Numbers:
        """Return the stream of each position, or numbers that sort positions in the same way."""

    def entries_of(
        self, position: int, size: int, steps: int, entries: range
    ) -> LocatedEntries | None:
        """Return some entries of each of `steps` steps of `size` positions, the first of which
        begins at `position`, sorted as by `placement_of` and then by position. None: positions have
        to be sorted for that."""

    def streams_of(self, rank: int, world: int, size: int) -> Sequence[range]:
        """Return the streams of each dataset that a rank reads in steps of `size`, as far as is
        known."""

    def ahead(self, position: int, streams: Reads = None) -> Iterator[tuple[int, ShardUse]]:
        """Yield (dataset, use of one of its shards), by first position, in positions of this
        stream."""

    @property
    def versions(self) -> Sequence[DatasetVersion]:
        """The versions of a dataset that has grown; empty: it has not."""

    def epoch_of(self, position: int) -> int:
        """Return the epoch that a position is in."""

    def epoch_begin(self, epoch: int) -> int:
        """Return the first position of an epoch."""

    @property
    def borders(self) -> Sequence[int]:
        """The positions at which a rule changes, so that no block of documents is packed across
        them."""

    def restored(self, state: State) -> SampleStream:
        """Return the stream that `state`, its identity when saved, describes. Raises as
        `resumed`."""

    def resumed(self, state: State, position: int) -> SampleStream:
        """Return the stream that continues where `state`, its identity when saved, was at
        `position`.

        Raises FingerprintError if that state belongs to another stream.
        """


class SingleStream:
    """The stream of one dataset."""

    def __init__(
        self,
        dataset: Dataset,
        order: Order,
        options: OrderOptions | None = None,
        *,
        grows: bool = False,
    ) -> None:
        """`grows`: whether a state of the dataset with fewer shards may be resumed."""
        self.datasets, self.orders = (dataset,), (order,)
        self.order, self.seed, self.grows = order, order.seed, grows
        self._options = options
        """What the order was made by; None: it was given, and a state has to have it."""
        self.growth: DatasetGrowth | None = None
        """How the dataset has grown since the state that this stream continues; None: not."""

    @classmethod
    def of(cls, dataset: Dataset, options: OrderOptions) -> SingleStream:
        """Return the stream of a dataset in the order of `options`. Raises DataError for impossible
        ones."""
        order = order_of(
            dataset,
            seed=options.seed,
            streams=options.streams,
            window=options.window,
            shuffle=options.shuffle,
            remix_every=options.remix_every,
        )
        # a loader's options have functions, too, which not every process could be sent
        own = OrderOptions(**{one.name: getattr(options, one.name) for one in fields(OrderOptions)})
        return cls(dataset, order, own, grows=getattr(options, "grow", "refuse") != "refuse")

    @property
    def samples(self) -> int:
        return self.order.samples

    @property
    def streams(self) -> int:
        return self.order.streams

    @property
    def identity(self) -> dict[str, Any]:
        manifest, versions = self.datasets[0].manifest, self.versions
        shards = versions[-1].shards if versions else len(self.order.counts)
        fingerprint = manifest.fingerprint_of(shards) if versions else manifest.fingerprint
        found = of_dataset(self.order.identity, fingerprint)
        if self.grows or versions:
            found["shards"] = shards
        if versions:
            found["grown"] = [list(version) for version in versions]
        return found

    @property
    def versions(self) -> Sequence[DatasetVersion]:
        return self.order.versions if isinstance(self.order, GrownOrder) else ()

    def epoch_of(self, position: int) -> int:
        return self.order.epoch_of(position)

    def epoch_begin(self, epoch: int) -> int:
        return self.order.epoch_begin(epoch)

    def locate(self, positions: Ints) -> SampleLocations:
        shards, samples = self.order.locate(positions)
        return SampleLocations(np.zeros_like(shards), shards, samples)

    def stream_of(self, positions: npt.ArrayLike) -> Ints:
        return self.order.stream_of(positions)

    def placement_of(self, positions: npt.ArrayLike) -> Numbers:
        return self.order.placement_of(positions)

    def entries_of(
        self, position: int, size: int, steps: int, entries: range
    ) -> LocatedEntries | None:
        positions = self.order.entries_of(position, size, steps, entries)
        return None if positions is None else (positions, self.locate(positions))

    def streams_of(self, rank: int, world: int, size: int) -> Sequence[range]:
        return [streams_of_ranks(rank, rank + 1, world, size, self.streams)]

    def ahead(self, position: int, streams: Reads = None) -> Iterator[tuple[int, ShardUse]]:
        of_rank = None if streams is None else streams[0]
        return ((0, use) for use in uses_ahead(self.order, position, of_rank))

    @property
    def borders(self) -> Sequence[int]:
        return ()

    def restored(self, state: State) -> SingleStream:
        """Return the stream that `state` describes, of the first shards if the dataset has grown
        since, with the streams and the window of the state where none were given. Raises as
        `resumed`."""
        stream, manifest = self._sized_as(state), self.datasets[0].manifest
        saved, versions = versions_of(state, manifest)
        fingerprint = versions[-1].fingerprint if versions else manifest.fingerprint
        check_same(saved, of_dataset(stream.order.identity, fingerprint))
        return stream._of_versions(versions)

    def resumed(self, state: State, position: int) -> SingleStream:
        """Return the stream that continues from `state`; further shards are read from the next
        epoch on, if the stream may grow."""
        stream, manifest = self._sized_as(state), self.datasets[0].manifest
        saved, versions = versions_of(state, manifest)
        here = of_dataset(stream.order.identity, manifest.fingerprint)
        if not versions or versions[-1].shards == len(manifest):
            check_same(saved, here)
            return stream._of_versions(versions)
        newest = versions[-1]
        check_same(saved, of_dataset(stream.order.identity, newest.fingerprint))
        if not self.grows:
            raise grown_error(newest, manifest)
        samples = [int(manifest.samples[: version.shards].sum()) for version in versions]
        grown = with_version(versions, samples, position, (len(manifest), here["fingerprint"]))
        found = stream._of_versions(grown)
        found.growth = DatasetGrowth(newest.shards, len(manifest), grown[-1].begin, grown[-1].epoch)
        return found

    def _sized_as(self, state: State) -> SingleStream:
        """Return this stream, with the streams and the window of the state where none were
        given."""
        given = self._options
        if given is None or None not in (given.streams, given.window) or not given.shuffle:
            return self
        sizes = replace(
            given,
            streams=_size(state, "streams") if given.streams is None else given.streams,
            window=_size(state, "window") if given.window is None else given.window,
        )
        order = SingleStream.of(self.datasets[0], sizes).order
        return SingleStream(self.datasets[0], order, sizes, grows=self.grows)

    def _of_versions(self, versions: Sequence[DatasetVersion]) -> SingleStream:
        """Return the stream of these versions of the dataset; of none, this one. Raises
        DataError."""
        if not versions or (len(versions) == 1 and versions[0].shards == len(self.order.counts)):
            return self
        try:
            newest = self.order.of_first(versions[-1].shards)
            if len(versions) > 1:
                newest = GrownOrder(newest, versions)
        except ValueError as error:
            raise DataError(f"not a loader's state: {error}") from error
        return SingleStream(self.datasets[0], newest, self._options, grows=self.grows)


class MixedStream:
    """The stream of several datasets, the *sources* of a mixture, mixed by weights that change at
    given positions, and may be changed when a run is resumed."""

    def __init__(
        self,
        datasets: Sequence[Dataset],
        orders: Sequence[Order],
        mixture: Mixture,
        names: Sequence[str] = (),
        changed: tuple[MixtureSegment, MixtureSegment] | None = None,
        stage_plan: StagePlan | None = None,
        earlier: Sequence[Order] = (),
    ) -> None:
        self.datasets = tuple(datasets)
        self.orders, self.mixture, self.seed = tuple(orders), mixture, mixture.seed
        self.names = tuple(names)
        """The name of each dataset; empty: they have none, and are known by their order."""
        self.changed = changed
        """The segment of a state that was in force where this stream continues from it, and the
        other one that is from there on; None: it is the same."""
        self.stage_plan = stage_plan
        """Where stages begin after a resume with other weights; None: at the same positions."""
        self._earlier = tuple(earlier)
        """The order of each dataset by the numbers of streams that an earlier version has chosen,
        by which a state may be; empty: they were given."""
        self._order = MixedOrder(self.orders, mixture)

    @property
    def samples(self) -> int:
        return self.mixture.samples

    @property
    def versions(self) -> Sequence[DatasetVersion]:
        return ()

    def epoch_of(self, position: int) -> int:
        return position // self.samples

    def epoch_begin(self, epoch: int) -> int:
        return epoch * self.samples

    @property
    def streams(self) -> int:
        return 1  # a bad sample's substitute may be the next one, of any dataset

    @property
    def borders(self) -> Sequence[int]:
        return [part.position for part in self.mixture.segments[1:]]

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "order": self.mixture.order,
            "seed": self.seed,
            "block": self.mixture.block,
            "datasets": self._digests,
            "segments": [[part.position, list(part.parts)] for part in self.mixture.segments],
        }

    @cached_property
    def _digests(self) -> list[str]:
        each = zip(self.orders, self.datasets, strict=True)
        return [
            digest_of(of_dataset(order.identity, dataset.fingerprint)) for order, dataset in each
        ]

    def locate(self, positions: Ints) -> SampleLocations:
        return SampleLocations(*self._order.locate(positions))

    def stream_of(self, positions: npt.ArrayLike) -> Ints:
        return self._order.stream_of(positions)

    def placement_of(self, positions: npt.ArrayLike) -> Numbers:
        return self._order.placement_of(positions)

    def entries_of(
        self, position: int, size: int, steps: int, entries: range
    ) -> LocatedEntries | None:
        found = self._order.entries_of(position, size, steps, entries)
        if found is None:
            return None
        places = self._order.locate_own(found.datasets, found.own)
        return found.positions, SampleLocations(found.datasets, *places)

    def streams_of(self, rank: int, world: int, size: int) -> Sequence[range]:
        counts = [order.streams for order in self.orders]
        by_segment = [
            mixed_streams_of_rank(rank, world, size, [p / PARTS for p in part.parts], counts)
            for part in self.mixture.segments
        ]
        return [joined_ranges(ranges) for ranges in zip(*by_segment, strict=True)]

    def ahead(self, position: int, streams: Reads = None) -> Iterator[tuple[int, ShardUse]]:
        """Yield the next uses of all datasets, ordered by how far each has been read."""
        walks = []
        for number, begun in enumerate(self.mixture.consumed(position).tolist()):
            of_rank = None if streams is None else streams[number]
            if self.mixture.position_of(number, begun) is not None:
                uses = uses_ahead(self.orders[number], begun, of_rank)
                walks.append(_placed(number, uses, self.mixture, position))
        return _merged(walks)

    def restored(self, state: State) -> MixedStream:
        """Return the stream that `state` describes: with its weights alone, and its datasets first,
        in the order that they had. Raises as `resumed`."""
        saved, digests = dict(state), digests_of(state)
        segments = saved.pop("segments", [])
        mine = self._of_order(saved.get("order"))._as_saved(digests)._arranged(digests)
        here = mine.identity
        del here["segments"]
        if digests and len(digests) < len(mine.datasets):
            here["datasets"] = here["datasets"][: len(digests)]
        try:
            check_same(saved, here)
        except FingerprintError as error:
            if not self.names or not all(f.startswith("dataset ") for f in error.differences):
                raise
            raise FingerprintError(error.differences, mine._unlike(digests)) from None
        more = [0] * (len(mine.datasets) - len(digests))
        try:
            before = [MixtureSegment(int(at), (*parts, *more)) for at, parts in segments]
            mixture = mine.mixture.of_segments(before)
            return MixedStream(mine.datasets, mine.orders, mixture, mine.names)
        except (ValueError, TypeError, IndexError) as error:
            raise DataError(f"not a loader's state: its segments are not valid: {error}") from error

    def _unlike(self, digests: Sequence[str]) -> str:
        """Return which named datasets a state does not have, and what to do."""
        others = [
            n for n, mine in zip(self.names, self._digests, strict=True) if mine not in digests
        ]
        if not others:
            return "it has read more datasets than are given; give those, too, with a weight of 0"
        return (
            f"a dataset that it has read is not given; of {', '.join(others)}, shards, seed, "
            "streams, window or remix_every may differ; restore them, and give new shards as a "
            "further dataset"
        )

    def resumed(self, state: State, position: int) -> MixedStream:
        """Return the stream that continues from `state`: up to `position` as it was, from there on
        by the weights of this one. Datasets that the state does not have begin there."""
        before = self.restored(state)
        mine = self._as_saved(digests_of(state))._arranged(digests_of(state))
        planned = mine._planned(before.mixture.segments, position)
        segments = continued(before.mixture.segments, planned, position)
        mixture = before.mixture.of_segments(segments)
        was, now = before.mixture.in_force(position), mixture.in_force(position)
        changed = None if was.parts == now.parts else (was, now)
        return MixedStream(before.datasets, before.orders, mixture, before.names, changed)

    def _planned(self, before: Sequence[MixtureSegment], position: int) -> Sequence[MixtureSegment]:
        """Return the segments of this mixture for a stream that had those `before` up to
        `position`: its own if they are the same up to there, else those of the stage plan."""
        here = self.mixture.segments
        is_same = same_until(position, before, here)
        if self.stage_plan is None or is_same:
            return here
        try:
            later = [segment(at, of) for at, of in self.stage_plan(before, position)]
        except ValueError as error:
            raise DataError(str(error)) from error
        return [MixtureSegment(0, later[0].parts), *later[1:]]

    def _of_order(self, order: object) -> MixedStream:
        """Return the same mixture in the order of a state; itself if there is no such order."""
        here = self.mixture
        if order not in MIX_ORDERS or order == here.order:
            return self
        mixture = Mixture(here.segments, seed=here.seed, block=here.block, order=order)
        return MixedStream(
            self.datasets,
            self.orders,
            mixture,
            self.names,
            stage_plan=self.stage_plan,
            earlier=self._earlier,
        )

    def _as_saved(self, digests: Sequence[str]) -> MixedStream:
        """Return the same mixture with the earlier orders of datasets whose digests have them."""
        if not self._earlier:
            return self
        orders = []
        for dataset, order, earlier in zip(self.datasets, self.orders, self._earlier, strict=True):
            was = digest_of(of_dataset(earlier.identity, dataset.fingerprint))
            orders.append(earlier if was in digests else order)
        return MixedStream(
            self.datasets, orders, self.mixture, self.names, stage_plan=self.stage_plan
        )

    def _arranged(self, digests: Sequence[str]) -> MixedStream:
        """Return the same mixture with its datasets in the order of `digests`, others after them.
        Datasets without names keep their order."""
        mine = self._digests
        if not self.names or len(set(mine)) < len(mine) or not set(digests) <= set(mine):
            return self
        order = [mine.index(digest) for digest in digests]
        order += [number for number in range(len(mine)) if number not in order]
        segments = [
            MixtureSegment(part.position, tuple(part.parts[number] for number in order))
            for part in self.mixture.segments
        ]
        mixture = self.mixture.of_segments(segments)
        return MixedStream(
            [self.datasets[number] for number in order],
            [self.orders[number] for number in order],
            mixture,
            [self.names[number] for number in order],
            stage_plan=self.stage_plan and partial(_arranged_plan, self.stage_plan, order),
        )


def _size(state: State, name: str) -> int | None:
    """Return a positive number of a state, None if it has none."""
    found = state.get(name)
    return found if type(found) is int and found > 0 else None


def _arranged_plan(
    plan: StagePlan, order: Sequence[int], before: Sequence[MixtureSegment], position: int
) -> list[tuple[int, Sequence[Weight]]]:
    """Return the stages of a plan whose dataset `order[n]` is number n of these segments."""
    places = sorted(range(len(order)), key=lambda place: order[place])
    theirs = [
        MixtureSegment(part.position, tuple(part.parts[place] for place in places))
        for part in before
    ]
    return [(at, [of[number] for number in order]) for at, of in plan(theirs, position)]


def recurring_skips(stream: SampleStream, skipped: SkippedRanges) -> SkippedRanges:
    """Return all positions of a stream that are left out, if those in `skipped` are: also those at
    which the same samples come in later epochs. Raises DataError if no sample would be left."""
    if not skipped:
        return skipped
    try:
        if isinstance(stream, MixedStream):
            return MixedSkips(skipped, stream.orders, stream.mixture)
        if isinstance(stream, SingleStream):
            return RecurringSkips(skipped, stream.order)
    except ValueError as error:
        raise DataError(str(error)) from error
    return skipped  # of a slice, which no Loader has


def live_shards(stream: SampleStream, reads: Sequence[Collection[int]]) -> int:
    """Return how many shards the samples of some streams come from at a time, at most."""
    each = zip(stream.datasets, stream.orders, reads, strict=True)
    return sum(min(len(dataset.manifest), order.window * len(of)) for dataset, order, of in each)


def mean_bytes(stream: SampleStream) -> float:
    """Return the mean bytes of a sample in its shard, with its headers; at least 1."""
    total = sum(int(dataset.manifest.bytes.sum()) for dataset in stream.datasets)
    return max(1.0, total / sum(map(len, stream.datasets)))


def store_counts(stream: SampleStream) -> dict[str, float]:
    """Return the counters of all node stores of its datasets, for this process, in sum, by the
    names of `data.cache.cache_metrics.CacheMetrics`."""
    counts = Counter[str]()
    for store in {dataset.store for dataset in stream.datasets}:
        counts.update(store.metrics.counts())
    return dict(counts)


@checks_arguments
def mixed(
    datasets: Sequence[Dataset],
    weights: Sequence[Weight],
    *,
    stages: Sequence[tuple[int, Sequence[Weight]]] = (),
    stage_plan: StagePlan | None = None,
    names: Sequence[str] = (),
    seed: int = 0,
    streams: int | None = None,
    window: int | None = None,
    remix_every: int = 0,
    block: int = 1024,
) -> MixedStream:
    """Mix datasets by weight: of each `block` positions each gets its share, without end.

    A loader that loads the state of one with other weights continues with these weights; each
    dataset's own samples continue where they were. `seed`, `streams`, `window` and `remix_every`
    are those of each dataset's order, see `OrderOptions`.

    Args:
        weights: a number >= 0 for each dataset: its share of the samples, up to a common factor.
        stages: a curriculum: (position, weights) pairs by rising position; from that position on,
            these weights are used.
        stage_plan: returns the stages from a position on, `(position, weights)` pairs, given the
            segments before it: of a loader that continues a state with other weights, in place of
            `stages`, whose positions may depend on the weights before them.
        names: a name for each dataset. Named datasets may be given in another order when a state is
            loaded, and more of them, which begin there; without names, more of them only at the
            end.

    Raises DataError for impossible arguments.
    """
    try:
        is_list = isinstance(datasets, Sequence)
        if not is_list or not all(isinstance(one, Dataset) for one in datasets):
            raise ValueError(f"datasets must be a list of open datasets, got {datasets!r:.100}")
        if not datasets:
            raise ValueError("no datasets given to mix")
        for each in (weights, *(of for _, of in stages), *([names] if names else [])):
            if not isinstance(each, Sized) or isinstance(each, Mapping | str | set | frozenset):
                raise ValueError(f"weights and names are lists, one of each dataset, got {each!r}")
            if len(datasets) != len(each):
                what = "names" if each is names else "weights"
                raise ValueError(f"{len(datasets)} datasets, but {len(each)} {what}")
        if len(set(names)) < len(names):
            raise ValueError(f"names must be different, got {list(names)}")
        by_size = partial(order_of, seed=seed, remix_every=remix_every)
        orders = [by_size(dataset, streams=streams, window=window) for dataset in datasets]
        earlier: list[Order] = []
        if streams is None or window is None:
            sized = partial(by_size, streams=streams or STREAMS, window=window or WINDOW)
            earlier = [sized(dataset) for dataset in datasets]
        segments = [segment(at, of) for at, of in [(0, weights), *stages]]
        mixture = Mixture(segments, seed=seed, block=block)
    except ValueError as error:
        raise DataError(str(error)) from error
    return MixedStream(datasets, orders, mixture, names, stage_plan=stage_plan, earlier=earlier)


def order_of(
    dataset: Dataset,
    *,
    seed: int,
    streams: int | None = None,
    window: int | None = None,
    shuffle: bool = True,
    remix_every: int = 0,
) -> Order:
    """Return the order of a dataset's samples, by `OrderOptions`. Raises DataError for impossible
    arguments."""
    if len(dataset) == 0:
        first = f", such as {masked(dataset.manifest.urls[0])}" if len(dataset.manifest) else ""
        raise EmptyDatasetError(
            f"the dataset has no samples in its {len(dataset.manifest)} shards{first}: a sample is "
            "the files of one name with extensions, such as 0001.jpg and 0001.txt"
        )
    sizes = stream_sizes(dataset.manifest, streams, window)
    try:
        return Order(
            dataset.manifest.samples,
            seed=seed,
            streams=sizes.streams,
            window=sizes.window,
            shuffle=shuffle,
            remix_every=remix_every,
        )
    except ValueError as error:
        raise DataError(str(error)) from error


def check_order_options(stream: SampleStream, options: OrderOptions) -> None:
    """Raise DataError if an option of the order is given for a stream that was made with another
    one, which it keeps."""
    for one in fields(OrderOptions):
        given = getattr(options, one.name)
        has = {stream.seed} if one.name == "seed" else {getattr(o, one.name) for o in stream.orders}
        if given != one.default and has != {given}:
            raise DataError(
                f"{one.name}={given!r}: the stream has an order of its own, by {one.name}="
                f"{', '.join(map(repr, sorted(has)))}; leave it out here, or give it to what makes "
                "the stream, such as mixed"
            )


def in_order(dataset: Dataset, *, samples: int | None = None, seed: int = 0) -> SingleStream:
    """Return the samples of a dataset in their stored order, or `samples` of them: the first ones
    of each shard, in proportion. `seed` is passed to transforms. Raises DataError for impossible
    arguments."""
    counts, total = dataset.manifest.samples, len(dataset)
    if samples is not None and samples < total:
        counts = np.diff(np.cumsum(counts) * samples // total, prepend=0)
    try:
        return SingleStream(dataset, Order(counts, seed=seed, shuffle=False))
    except ValueError as error:
        raise DataError(str(error)) from error


def _placed(
    number: int, uses: Iterator[ShardUse], mixture: Mixture, position: int
) -> Iterator[tuple[int, ShardUse]]:
    """Convert positions of a dataset to positions of the mixture, approximately, until it ends."""
    for use in uses:
        first = mixture.position_of(number, use.first)
        if first is None:
            return
        last = mixture.position_of(number, use.last)
        yield number, ShardUse(max(position, first), NEVER if last is None else last, use.shard)


def joined_ranges(ranges: Sequence[range]) -> range:
    """Return the least range that holds all of these."""
    real = [each for each in ranges if each]
    return range(min(r.start for r in real), max(r.stop for r in real)) if real else range(0)


def _merged(walks: Sequence[Iterator[tuple[int, ShardUse]]]) -> Iterator[tuple[int, ShardUse]]:
    return heapq.merge(*walks, key=lambda found: found[1].first)
