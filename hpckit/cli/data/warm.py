"""`hpckit data warm`, which downloads shards into the node's cache before a run."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpckit.cli.common.byte_sizes import parse_size
from hpckit.cli.common.command_output import CommandOutput, count, size, speed, took
from hpckit.cli.common.exit_status import NOT_ALL, OUT_OF_REACH
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.cli.data.dataset_errors import guarded
from hpckit.cli.data.dataset_options import (
    CacheOption,
    SeedOption,
    ShardsArg,
    StateOption,
    StreamsOption,
    WindowOption,
)

if TYPE_CHECKING:
    from data.cache.cache_warming import CacheWarmingReport
    from data.cache.files.cache_entry import ShardRef
    from data.read.sample_stream import SingleStream

_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?/(\d{1,9})")
_MOST = 20  # failures that are printed; --json has all


@guarded
def warm(
    shards: ShardsArg,
    cache: CacheOption,
    cache_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest size of the cache, as 500GB.")
    ],
    streams_of: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS/WORLD",
            help="Only what these ranks read, as 0-7/64; needs --global-batch.",
            show_default=False,
        ),
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="Global batch size.", show_default=False)
    ] = None,
    state: StateOption = None,
    position: Annotated[
        int | None,
        typer.Option(
            min=0, help="Position at which the run begins; by default that of the state, or 0."
        ),
    ] = None,
    seed: SeedOption = None,
    streams: StreamsOption = None,
    window: WindowOption = None,
    downloads: Annotated[int, typer.Option(min=1, help="Number of concurrent downloads.")] = 8,
    mounted: Annotated[
        bool,
        typer.Option(
            "--mounted",
            help="Also cache shards on shared file systems (NFS, Lustre), as data.cache_local=auto "
            "does.",
        ),
    ] = False,
    json: JsonOption = False,
) -> int:
    """Download the shards that a run needs first into the node's cache. Exit status 4: some do not
    fit.

    Example: hpckit data warm s3://bucket/set --cache /nvme/cache --cache-bytes 500GB

    It continues an interrupted download, and may run while jobs read from the cache.
    """
    from data.cache.cache_warming import warm as warm_cache
    from hpckit.cli.common.progress_bar import progress_report
    from hpckit.cli.data.dataset_opening import (
        OrderOverrides,
        open_shards,
        order_of,
        position_of,
        read_state,
    )

    screen = CommandOutput(json)
    budget = parse_size(cache_bytes)
    ranks = None if streams_of is None else _ranks(streams_of, global_batch)
    loader_state = None if state is None else read_state(state)
    dataset = open_shards(shards, cache, budget, "auto" if mounted else False)
    with dataset.store as store:
        stream = order_of(dataset, loader_state, OrderOverrides(seed, streams, window))
        begin = position_of(loader_state) if loader_state and position is None else position or 0
        numbers = {dataset.ref(shard): shard for shard in _first_used(stream, begin, ranks)}
        refs = list(numbers)

        def keep_index(ref: ShardRef) -> None:
            with store.open(ref) as opened:
                dataset.index(numbers[ref], opened)

        started_s = time.monotonic()
        with progress_report("warming", screen, lambda: store.metrics.bytes_fetched) as progress:
            warmed = warm_cache(
                store,
                refs,
                budget,
                downloads=downloads,
                cached=keep_index,
                progress=progress,
            )
        seconds = time.monotonic() - started_s
        fetched, trouble = store.metrics.bytes_fetched, store.metrics.cache_errors
    _print(screen, warmed, len(refs), fetched, seconds, trouble)
    screen.document(_plain(warmed, len(refs), fetched, seconds, trouble))
    if warmed.errors or (warmed.left_out and trouble):
        return OUT_OF_REACH
    return NOT_ALL if warmed.left_out else 0


def _ranks(text: str, global_batch: int | None) -> tuple[int, int, int, int]:
    """Return the first rank, the last one + 1, the number of all ranks, and the global batch."""
    match = _RANKS.fullmatch(text.strip())
    if match is None:
        raise CommandUsageError(f"--streams-of {text!r}: write RANKS/WORLD, as 0-7/64 or 3/16")
    first, last, world = int(match[1]), int(match[2] or match[1]), int(match[3])
    if not first <= last < world:
        raise CommandUsageError(f"--streams-of {text!r}: ranks are 0..{world - 1} of {world}")
    if global_batch is None:
        raise CommandUsageError(
            "--streams-of requires --global-batch, which decides which rank reads what"
        )
    return first, last + 1, world, global_batch


def _first_used(
    stream: SingleStream, position: int, ranks: tuple[int, int, int, int] | None
) -> list[int]:
    """Return each shard once, in the order of their first use."""
    from data.order.rank_shares import streams_of_ranks
    from data.order.shard_uses import shards_ahead

    only = None
    if ranks is not None and stream.streams > 1:
        only = streams_of_ranks(*ranks, stream.streams)
    try:
        return [shard for _, shard in shards_ahead(stream.order, position, only)]
    except ValueError as error:
        raise CommandUsageError(str(error)) from None


def _print(
    screen: CommandOutput,
    warmed: CacheWarmingReport,
    total: int,
    fetched: int,
    seconds: float,
    trouble: Counter[str],
) -> None:
    for error in warmed.errors[:_MOST]:
        screen.note(f"failed: {error}")
    if len(warmed.errors) > _MOST:
        screen.note(f"and {len(warmed.errors) - _MOST:,} more: --json lists them")
    for name, times in trouble.items():
        screen.note(f"the cache's disk gave {name}, {count(times, 'time')}")
    rate = speed(fetched, seconds)
    screen.line(
        f"{warmed.shards:,} of {count(total, 'shard')} in the cache, {size(warmed.bytes)}; "
        f"fetched {size(fetched)} in {took(seconds)}{f', {rate}' if rate else ''}"
    )
    if warmed.in_place:
        are = "is a file" if warmed.in_place == 1 else "are files"
        screen.line(f"{warmed.in_place:,} {are} of this machine, read directly, without a cache")
    if warmed.left_out:
        verbs = (
            "does not fit in the cache and is"
            if warmed.left_out == 1
            else ("do not fit in the cache and are")
        )
        screen.note(f"{warmed.left_out:,} {verbs} fetched as needed")


def _plain(
    warmed: CacheWarmingReport, total: int, fetched: int, seconds: float, trouble: Counter[str]
) -> dict[str, Any]:
    return {
        "shards": total,
        "cached": warmed.shards,
        "bytes": warmed.bytes,
        "in_place": warmed.in_place,
        "left_out": warmed.left_out,
        "failed": [str(error) for error in warmed.errors],
        "bytes_fetched": fetched,
        "seconds": seconds,
        "cache_errors": dict(trouble),
    }
