"""`hpckit data where`, which lists the samples of a step and their places in the shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hpckit.cli.common.command_output import CommandOutput, clean, count, size, table
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.cli.common.store_options import JsonOption
from hpckit.cli.data.dataset_errors import guarded
from hpckit.cli.data.dataset_options import (
    BlockSizeOption,
    ColumnOption,
    DtypeOption,
    EndOfTextOption,
    SeedOption,
    ShardsArg,
    StateOption,
    StreamsOption,
    WindowOption,
    token_files_of,
)

if TYPE_CHECKING:
    from data.order.rank_shares import Tail, Uneven
    from data.order.skipped_ranges import SkippedRanges
    from data.read.batches.batch_fetcher import BatchWork
    from data.read.batches.batch_plan import Topology
    from data.read.dataset import Dataset
    from data.read.sample_stream import SampleStream
    from data.read.sequences.packed_batches import PackPlan
    from hpckit.cli.data.step_position import LeftOutOf, SkippedUpdate

_RIGHT = ("position", "rank", "step", "sequence", "tokens", "shard", "sample", "offset", "size")


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
class _Begin:
    """The beginning of a step, as the command line determines it."""

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


@guarded
def where(
    shards: ShardsArg,
    state: StateOption = None,
    position: Annotated[
        int | None,
        typer.Option(min=0, help="Position in the stream of samples.", show_default=False),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="A run directory, a store of checkpoints, or a run in it (STORE/runs/RUN).",
            show_default=False,
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --run: its step, from 1; without: number of steps after the position.",
            show_default=False,
        ),
    ] = None,
    global_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Global batch size.", show_default=False),
    ] = None,
    world: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of ranks, to show which rank reads what.", show_default=False
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Show only what this rank reads.", show_default=False)
    ] = None,
    uneven: Annotated[str, typer.Option(help="As for the Loader: error, ragged or pad.")] = "error",
    tail: Annotated[
        str, typer.Option(help="As for the Loader: straddle, drop or pad.")
    ] = "straddle",
    seed: SeedOption = None,
    streams: StreamsOption = None,
    window: WindowOption = None,
    dtype: DtypeOption = None,
    end_of_text: EndOfTextOption = None,
    block_size: BlockSizeOption = None,
    column: ColumnOption = None,
    skipped: Annotated[
        bool,
        typer.Option(
            "--skipped",
            help="List what is left out after spikes.",
        ),
    ] = False,
    most: Annotated[int, typer.Option(min=1, help="Most rows to print.")] = 100,
    json: JsonOption = False,
) -> None:
    """List the samples of a step of a run, of a loader's state, or of a position.

    Example: hpckit data where shards --run runs/gpt-1a2b3c4d --step 1000

    Of a run on a mixture, each source is given as NAME=SHARDS.

    --step K is the step with the number K in the log of the run.
    """
    from data.read.dataset_growth import explained
    from data.read.sample_stream import recurring_skips
    from hpckit.cli.data.dataset_opening import (
        OrderOverrides,
        is_mixture,
        open_mixture,
        open_shards,
        order_of,
        spec_of_run,
    )
    from hpckit.cli.data.step_position import skipped_of

    screen = CommandOutput(json)
    if (rank is not None) and (world is None or rank >= world):
        raise CommandUsageError(f"--rank {rank} needs a --world of more than {rank} ranks")
    if skipped and position is not None:
        raise CommandUsageError("--skipped needs --run PLACE or --state FILE: what is left out")
    token_files = token_files_of(dtype, end_of_text, block_size, column)
    overrides = OrderOverrides(seed, streams, window)

    @cache
    def dataset_of_shards() -> Dataset:
        return open_shards(shards, token_files=token_files)

    def opened(told: Mapping[str, Any] | None) -> SampleStream:
        if told is not None and is_mixture(told):
            return open_mixture(shards, told, overrides, token_files, spec_of_run(run))
        return order_of(dataset_of_shards(), told, overrides)

    def left_out_of(told: Mapping[str, Any]) -> SkippedRanges:
        found = skipped_of(told)
        return recurring_skips(opened(told), found) if found and "pack" not in told else found

    # one sample is a step: what is left out is listed whatever the batch is
    batch = global_batch or (1 if skipped else None)
    begin = _begin(state, position, run, step, batch, left_out_of)
    stream = opened(begin.state)
    try:
        rows = list(
            _rows_left_out(stream, begin)
            if skipped
            else _rows(stream, begin, cast("Tail", tail), cast("Uneven", uneven), world or 1, rank)
        )
    except ValueError as error:
        raise CommandUsageError(str(error)) from None
    finally:
        for dataset in stream.datasets:
            dataset.close()
    samples = [asdict(row) for row in rows]
    if skipped:
        _print_left_out(screen, rows, most)
        screen.document({"samples": samples})
        return
    version, number = _version(stream, rows), len(stream.versions)
    text = None if version is None else explained(version, version["number"] - 1, number)
    _print(screen, rows, begin, world is not None, most, text)
    said = {} if version is None else {"dataset_version": version}
    document = {"step": begin.step, "global_batch": begin.batch, **said, "samples": samples}
    screen.document(document)


def _begin(
    state: str | None,
    position: int | None,
    run: str | None,
    step: int | None,
    batch: int | None,
    left_out_of: LeftOutOf,
) -> _Begin:
    from hpckit.cli.data.dataset_opening import position_of, read_state
    from hpckit.cli.data.step_position import find_step_position, of_ramp

    if sum(given is not None for given in (state, position, run)) != 1:
        raise CommandUsageError("give one of --run PLACE, --state FILE and --position P")
    if run is not None:
        if step == 0:
            raise CommandUsageError("--step 0: the steps of a run are numbered from 1")
        found = find_step_position(run, None, step, batch, left_out_of)
        if found.batch is None:
            raise CommandUsageError(
                f"the number of samples of step {found.step} is unknown: give it with "
                "--global-batch"
            )
        return _Begin(
            found.state,
            found.position,
            found.batch,
            found.step,
            found.later,
            found.skipped_updates,
            found.seen,
            found.later_samples,
        )
    loader_state = None if state is None else read_state(state)
    ramp = (loader_state or {}).get("batch_ramp")
    if batch is None and ramp is None:
        raise CommandUsageError("--global-batch is required: the number of samples of a step")
    if loader_state is None:
        return _Begin(None, position or 0, batch or 0, later=step or 0)
    if batch is None and "pack" not in loader_state:
        begin = of_ramp(loader_state, position_of(loader_state), step or 0, left_out_of)
        return _Begin(loader_state, *begin)
    at, seen = position_of(loader_state), int(loader_state.get("seen", 0))
    size = batch or int((ramp or [0])[-1])
    return _Begin(loader_state, at, size, later=step or 0, seen=seen)


def _rows(
    stream: SampleStream, begin: _Begin, tail: Tail, uneven: Uneven, world: int, rank: int | None
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


def _rows_left_out(stream: SampleStream, begin: _Begin) -> Iterator[SampleRow]:
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
    begin: _Begin,
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


def _version(stream: SampleStream, rows: list[SampleRow]) -> dict[str, Any] | None:
    """Return the version of a dataset that has grown which the first of these samples are of."""
    if not stream.versions or not rows:
        return None
    first = min(row.position for row in rows)
    number = sum(version.begin <= first for version in stream.versions)
    return {"number": number, **stream.versions[number - 1]._asdict()}


def _source(stream: SampleStream, position: int) -> tuple[int, str | None, int]:
    """Return the number and the name of the dataset of a position, and the position in its own
    stream. It has no name if it is not one of a mixture."""
    from data.read.sample_stream import MixedStream

    if not isinstance(stream, MixedStream):
        return 0, None, position
    numbers, own = stream.mixture.locate([position])
    return int(numbers[0]), stream.names[int(numbers[0])], int(own[0])


def _print_left_out(screen: CommandOutput, rows: list[SampleRow], most: int) -> None:
    if rows:
        _print_rows(screen, rows, False, most)
    read = [row for row in rows if row.step is not None]
    screen.line(f"the loader leaves out {count(len(rows) - len(read), 'sample')}")
    if read:
        steps = count(len({row.step for row in read}), "step")
        screen.line(f"{count(len(read), 'sample')} were read in {steps} without an update")


def _print(
    screen: CommandOutput,
    rows: list[SampleRow],
    begin: _Begin,
    by_rank: bool,
    most: int,
    version: str | None,
) -> None:
    _print_rows(screen, rows, by_rank, most)
    step = "" if begin.step is None else f"step {begin.step}: "
    epochs = sorted({row.epoch for row in rows})
    if version is not None:
        screen.line(version)
    of = " and ".join(str(epoch) for epoch in epochs[:2])
    different = len({row.shard for row in rows})
    screen.line(
        f"{step}{count(len(rows), 'sample')} of epoch {of}, from {count(different, 'shard')}"
    )


def _print_rows(screen: CommandOutput, rows: list[SampleRow], by_rank: bool, most: int) -> None:
    is_packed = any(row.sequence is not None for row in rows)
    is_mixed = any(row.source is not None for row in rows)
    has_steps = any(row.step is not None for row in rows)
    more = [
        *(["rank"] if by_rank else []),
        *(["step"] if has_steps else []),
        *(["sequence", "tokens"] if is_packed else []),
        *(["source"] if is_mixed else []),
    ]
    shown = table(
        "position", *more, "shard", "sample", "offset", "size", "key", "url", right=_RIGHT
    )
    for row in rows[:most]:
        cells = [str(row.position)] + ([str(row.rank or 0)] if by_rank else [])
        if has_steps:
            cells.append("" if row.step is None else str(row.step))
        if is_packed:
            first, after = row.tokens or (0, 0)
            cells += [str(row.sequence), f"{first}..{after - 1}"]
        cells += [clean(row.source or "")] if is_mixed else []
        cells += [str(row.shard), str(row.sample), str(row.offset), size(row.bytes)]
        key = clean(row.key) + (" (only fills the batch)" if row.repeat else "")
        shown.add_row(*cells, key, clean(row.url))
    screen.table(shown)
    if len(rows) > most:
        screen.line(f"and {len(rows) - most:,} more: --most shows them")
