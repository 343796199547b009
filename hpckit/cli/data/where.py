"""`hpckit data where`, which lists the samples of a step and their places in the shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from hpckit.cli.common.command_output import Cell, CommandOutput, clean, count, fitted_table, size
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.cli.data.dataset_errors import guarded
from hpckit.cli.data.dataset_options import (
    BlockSizeOption,
    ColumnOption,
    DtypeOption,
    EndOfTextOption,
    RemixEveryOption,
    SeedOption,
    ShardsArg,
    StateOption,
    StreamsOption,
    WindowOption,
    token_files_of,
)
from hpckit.cli.data.sample_rows import ListedStep, SampleRow, rows_left_out, rows_of_step

if TYPE_CHECKING:
    from data.order.rank_shares import Tail, Uneven
    from data.order.skipped_ranges import SkippedRanges
    from data.read.dataset import Dataset
    from data.read.sample_stream import SampleStream
    from hpckit.cli.data.step_position import LeftOutOf

_RIGHT = ("position", "rank", "step", "sequence", "tokens", "shard", "sample", "offset", "size")
_COLUMNS = (*_RIGHT[:5], "source", *_RIGHT[5:], "key", "url")
_IMPORTANCE = (
    *("position", "rank", "step", "key", "source", "url", "shard", "sample"),
    *("sequence", "tokens", "size", "offset"),
)
"""The columns, the least important one last."""
_FOLDED = {"key": 12, "url": 20}
"""Columns that may take several lines, and the width that they have at least."""


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
    remix_every: RemixEveryOption = None,
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
    overrides = OrderOverrides(seed, streams, window, remix_every)

    @cache
    def dataset_of_shards() -> Dataset:
        return open_shards(shards, token_files=token_files)

    def opened(loader_state: Mapping[str, Any] | None) -> SampleStream:
        if loader_state is not None and is_mixture(loader_state):
            return open_mixture(shards, loader_state, overrides, token_files, spec_of_run(run))
        return order_of(dataset_of_shards(), loader_state, overrides)

    def left_out_of(loader_state: Mapping[str, Any]) -> SkippedRanges:
        found = skipped_of(loader_state)
        return (
            recurring_skips(opened(loader_state), found)
            if found and "pack" not in loader_state
            else found
        )

    # one sample is a step: what is left out is listed whatever the batch is
    batch = global_batch or (1 if skipped else None)
    begin = _begin(state, position, run, step, batch, left_out_of)
    stream = opened(begin.state)
    try:
        if skipped:
            rows = list(rows_left_out(stream, begin))
        else:
            policies = cast("Tail", tail), cast("Uneven", uneven)
            rows = list(rows_of_step(stream, begin, *policies, world or 1, rank))
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
) -> ListedStep:
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
        return ListedStep(
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
        return ListedStep(None, position or 0, batch or 0, later=step or 0)
    if batch is None and "pack" not in loader_state:
        begin = of_ramp(loader_state, position_of(loader_state), step or 0, left_out_of)
        return ListedStep(loader_state, *begin)
    at, seen = position_of(loader_state), int(loader_state.get("seen", 0))
    size = batch or int((ramp or [0])[-1])
    return ListedStep(loader_state, at, size, later=step or 0, seen=seen)


def _version(stream: SampleStream, rows: list[SampleRow]) -> dict[str, Any] | None:
    """Return the version of a grown dataset that the first of these samples belongs to."""
    if not stream.versions or not rows:
        return None
    first = min(row.position for row in rows)
    number = sum(version.begin <= first for version in stream.versions)
    return {"number": number, **stream.versions[number - 1]._asdict()}


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
    begin: ListedStep,
    by_rank: bool,
    most: int,
    version: str | None,
) -> None:
    _print_rows(screen, rows, by_rank, most)
    step = "" if begin.step is None else f"step {begin.step}: "
    epochs = sorted({row.epoch for row in rows})
    if version is not None:
        screen.line(version)
    # counted from 1, as in reports; --json has the numbers of data/ORDER.md, from 0
    of = f"epoch {epochs[0] + 1}" if epochs else "no epoch"
    if len(epochs) > 1:
        of = f"epochs {epochs[0] + 1} {'and' if len(epochs) == 2 else 'to'} {epochs[-1] + 1}"
    different = len({(row.source, row.shard) for row in rows})
    screen.line(f"{step}{count(len(rows), 'sample')} of {of}, from {count(different, 'shard')}")


def _print_rows(screen: CommandOutput, rows: list[SampleRow], by_rank: bool, most: int) -> None:
    is_packed = any(row.sequence is not None for row in rows)
    is_mixed = any(row.source is not None for row in rows)
    has_steps = any(row.step is not None for row in rows)
    left_out = {
        *([] if by_rank else ["rank"]),
        *([] if has_steps else ["step"]),
        *([] if is_packed else ["sequence", "tokens"]),
        *([] if is_mixed else ["source"]),
    }
    cells = [_cells(row) for row in rows[:most]]
    importance = [name for name in _IMPORTANCE if name not in left_out]
    screen.table(
        fitted_table(
            cells, importance, screen.width, columns=_COLUMNS, right=_RIGHT, folded=_FOLDED
        )
    )
    if len(rows) > most:
        screen.line(f"and {len(rows) - most:,} more: --most shows them")


def _cells(row: SampleRow) -> dict[str, Cell]:
    first, after = row.tokens or (0, 0)
    return {
        "position": str(row.position),
        "rank": str(row.rank or 0),
        "step": "" if row.step is None else str(row.step),
        "sequence": str(row.sequence),
        "tokens": f"{first}..{after - 1}",
        "source": clean(row.source or ""),
        "shard": str(row.shard),
        "sample": str(row.sample),
        "offset": str(row.offset),
        "size": size(row.bytes),
        "key": clean(row.key) + (" (only fills the batch)" if row.repeat else ""),
        "url": clean(row.url),
    }
