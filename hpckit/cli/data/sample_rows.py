"""The samples of a step, or those that are left out, as rows that `hpckit data where` lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data.order.rank_shares import Tail, Uneven
    from data.order.skipped_ranges import SkippedRanges
    from data.read.batches.batch_fetcher import BatchWork
    from data.read.batches.batch_plan import Topology
    from data.read.sample_stream import SampleStream
    from data.read.sequences.packed_batches import PackPlan
    from hpckit.cli.data.step_position import SkippedUpdate


@dataclass(frozen=True)
class SampleRow:
    """A sample of a step."""

    position: int
    epoch: int
    rank: int | None
    shard: int
    url: str
    sample: int
    """Number of the sample in its shard."""
    offset: int
    """Offset of its first tar header in the shard."""
    bytes: int
    """Bytes of the sample with all headers."""
    key: str
    repeat: bool
    """Whether the sample only fills the batch."""
    sequence: int | None = None
    """If documents are packed, the number of the sequence on its rank. `tokens` is the range
    of tokens that the sequence takes, [first, after the last)."""
    tokens: tuple[int, int] | None = None
    source: str | None = None
    """Name of its dataset in a mixture."""
    step: int | None = None
    """With --skipped, the step that read it and whose update was left out; None: it is not read."""


@dataclass(frozen=True)
class ListedStep:
    """The step that is listed, by its beginning, as the command line determines it."""

    state: dict[str, Any] | None
    position: int
    batch: int
    step: int | None = None
    """Number of the step in the run, for people."""
    later: int = 0
    """Number of steps from the position to the step."""
    skipped_updates: tuple[SkippedUpdate, ...] = ()
    """The steps of the run whose update was left out."""
    seen: int = 0
    """Number of sequences of packed documents before the position."""
    later_samples: int = 0
    """Number of samples from the position to the step, if the steps differ in size."""


def rows_of_step(
    stream: SampleStream,
    begin: ListedStep,
    tail: Tail,
    uneven: Uneven,
    world: int,
    rank: int | None,
) -> Iterator[SampleRow]:
    """Yield the rows of each rank in turn. Raises ValueError, ShardError."""
    if begin.state is not None and "pack" in begin.state:
        yield from _packed(stream, begin, str(begin.state["pack"]), tail, uneven, world, rank)
        return
    import numpy as np

    from data.order.rank_shares import position_after, share
    from data.read.sample_stream import recurring_skips
    from hpckit.cli.data.step_position import skipped_of

    size, left_out = begin.batch, recurring_skips(stream, skipped_of(begin.state))
    at = position_after(begin.position, begin.later, size, stream.samples, tail, left_out)
    if begin.later_samples:
        at = left_out.later(begin.position, begin.later_samples)
    for each in range(world) if rank is None else (rank,):
        found = share(at, size, each, world, stream, uneven=uneven, tail=tail, skipped=left_out)
        order = np.argsort(found.positions, kind="stable")
        positions, real = found.positions[order], found.mask[order]
        places = stream.locate(positions)
        columns = (positions, places.shards, places.samples, real)
        for p, shard, sample, is_real in zip(*(c.tolist() for c in columns), strict=True):
            yield _row(stream, p, each if world > 1 else None, shard, sample, not is_real)


def rows_left_out(stream: SampleStream, begin: ListedStep) -> Iterator[SampleRow]:
    """Yield the samples that the loader leaves out, in their order, and then those of updates that
    were left out. Raises ValueError, ShardError, DataError."""
    import numpy as np

    from data.order.skipped_ranges import SkippedRanges
    from data.read.batches.batch_plan import Topology
    from hpckit.cli.data.step_position import skipped_of

    state = begin.state or {}
    alone = Topology(1, 0, 1, "error", "straddle", None)
    left_out = skipped_of(state).ranges
    ranges: list[tuple[int | None, int, int]] = [(None, first, end) for first, end in left_out]
    ranges += [(one.step, one.first, one.end) for one in begin.skipped_updates]
    for step, first, end in ranges:
        if "pack" in state:
            before = SkippedRanges(each for each in left_out if each[1] <= first)
            for work in _plan(stream, alone, str(state["pack"]), before).work(first):
                if work.share.after > end:
                    break
                yield from (replace(row, step=step) for row in _documents(stream, work, None))
            continue
        positions = np.arange(first, end)
        places = stream.locate(positions)
        columns = (positions.tolist(), places.shards.tolist(), places.samples.tolist())
        for position, shard, sample in zip(*columns, strict=True):
            yield replace(_row(stream, position, None, shard, sample, False), step=step)


def _packed(
    stream: SampleStream,
    begin: ListedStep,
    pack: str,
    tail: Tail,
    uneven: Uneven,
    world: int,
    rank: int | None,
) -> Iterator[SampleRow]:
    """Yield documents by sequence. Raises DataError."""
    from data.order.batch_ramp import BatchRamp
    from data.read.batches.batch_plan import Topology
    from hpckit.cli.data.step_position import skipped_of

    ramp = (begin.state or {}).get("batch_ramp")
    growing = BatchRamp(*ramp) if ramp and ramp[-1] == begin.batch else None
    topology = Topology(begin.batch, 0, world, uneven, tail, None, growing)
    plan = _plan(stream, topology, pack, skipped_of(begin.state))
    for each in range(world) if rank is None else (rank,):
        of_rank = replace(plan, topology=replace(topology, rank=each))
        work = next(islice(of_rank.work(begin.position, begin.seen), begin.later, None))
        yield from _documents(stream, work, each if world > 1 else None)


def _plan(stream: SampleStream, topology: Topology, pack: str, left_out: SkippedRanges) -> PackPlan:
    """Return the plan of batches of packed documents. Raises DataError."""
    from data.read.sequences.packed_batches import Packing, PackPlan

    plan = PackPlan.of(stream, topology, Packing.of_state(pack))
    return plan.skipping(left_out) if left_out else plan


def _documents(stream: SampleStream, work: BatchWork, rank: int | None) -> Iterator[SampleRow]:
    """Yield the documents of a batch, by sequence. Raises DataError."""
    from data.read.sequences.packed_batches import PackedPieces

    pieces = work.extra
    assert isinstance(pieces, PackedPieces)
    positions, shards, samples = work.share.positions, work.places.shards, work.places.samples
    columns = (pieces.pack, pieces.row, pieces.start, pieces.length)
    for sequence, row, start, length in zip(*columns, strict=True):
        sample_row = _row(
            stream,
            int(positions[row]),
            rank,
            int(shards[row]),
            int(samples[row]),
            not work.share.mask[sequence],
        )
        yield replace(sample_row, sequence=sequence, tokens=(start, start + length))


def _row(
    stream: SampleStream, position: int, rank: int | None, shard: int, sample: int, repeat: bool
) -> SampleRow:
    number, name, own = _source(stream, position)
    dataset = stream.datasets[number]
    index = dataset.opened(shard).index
    begin, end = index.span(sample)
    return SampleRow(
        position=position,
        epoch=stream.epoch_of(position) if name is None else own // len(dataset),
        rank=rank,
        shard=shard,
        url=dataset.manifest.urls[shard],
        sample=sample,
        offset=begin,
        bytes=end - begin,
        key=index.key(sample),
        repeat=repeat,
        source=name,
    )


def _source(stream: SampleStream, position: int) -> tuple[int, str | None, int]:
    """Return the number and the name of the dataset of a position, and the position in its own
    stream. It has no name if it is not one of a mixture."""
    from data.read.sample_stream import MixedStream

    if not isinstance(stream, MixedStream):
        return 0, None, position
    numbers, own = stream.mixture.locate([position])
    return int(numbers[0]), stream.names[int(numbers[0])], int(own[0])
