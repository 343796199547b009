"""`hpckit data bench`, which measures how fast this machine reads shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpckit.cli.common.byte_sizes import parse_size
from hpckit.cli.common.command_output import CommandOutput, table
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.cli.data.dataset_errors import guarded
from hpckit.cli.data.dataset_options import MaybeCacheOption, ShardsArg

if TYPE_CHECKING:
    from hpckit.cli.data.reader_benchmark import ReaderBenchmark, ReaderMeasurement

_PEERS = ("webdataset",)


@guarded
def bench(
    shards: ShardsArg,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64,
    threads: Annotated[int, typer.Option(min=0, help="Reader threads; 0: none.")] = 2,
    prefetch: Annotated[int, typer.Option(min=1, help="Number of batches to read ahead.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds of each measurement.")] = 5.0,
    rounds: Annotated[int, typer.Option(min=1, help="Number of measurements of each reader.")] = 3,
    step_ms: Annotated[
        float, typer.Option(min=0.0, help="Milliseconds of a simulated training step.")
    ] = 0.0,
    cache: MaybeCacheOption = None,
    cache_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Largest size of the cache, as 500GB.", show_default=False
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Also measure webdataset, which must be installed.", show_default=False),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure the throughput of a Loader, and of a plain read of the same bytes.

    Example: hpckit data bench shards --threads 4

    The readers alternate, each time in a new process. Shards that were read before are in the
    page cache.
    """
    from data.index.token_files.token_file_listing import first_token_file
    from hpckit.cli.common.progress_bar import progress_bar
    from hpckit.cli.data.dataset_opening import open_shards
    from hpckit.cli.data.reader_benchmark import ReaderBenchmark, arms, measure

    screen, peers = CommandOutput(json), _peers(against or [])
    budget = 0 if cache_bytes is None else parse_size(cache_bytes)
    if (cache is None) != (budget == 0):
        raise CommandUsageError("--cache and --cache-bytes must be given together")
    if (tokens := first_token_file(shards)) is not None:
        raise CommandUsageError(f"{tokens} is a token file, and only shards are measured here")
    dataset = open_shards(shards)
    if len(dataset) == 0:
        raise CommandUsageError(f"there are no samples in the {len(dataset.manifest)} shards")
    urls = tuple(dataset.manifest.urls)
    _check_local(urls, peers)
    what = ReaderBenchmark(
        tuple(shards), urls, seconds, batch, threads, prefetch, step_ms / 1e3, cache, budget
    )
    names = list(arms(peers))
    found: dict[str, list[ReaderMeasurement]] = {name: [] for name in names}
    with progress_bar("measuring") as progress:
        for turn in range(rounds):
            first = turn % len(names)
            for place, name in enumerate(names[first:] + names[:first]):
                progress(turn * len(names) + place, rounds * len(names))
                found[name].append(measure(name, what, peers))
    _print(screen, found)
    screen.document(_plain(what, found))


def ratios(found: Sequence[ReaderMeasurement], base: Sequence[ReaderMeasurement]) -> list[float]:
    """Return the ratio of bytes per second to those of the base arm, for each round."""
    pairs = zip(found, base, strict=True)
    return [one.mb_per_s / other.mb_per_s for one, other in pairs if other.mb_per_s]


def _peers(against: Sequence[str]) -> list[str]:
    import importlib.util

    for name in against:
        if name not in _PEERS:
            raise CommandUsageError(f"--against {name!r}: unknown; choose {', '.join(_PEERS)}")
        if importlib.util.find_spec(name) is None:
            raise CommandUsageError(f"--against {name}: it is not installed; pip install {name}")
    return list(dict.fromkeys(against))


def _check_local(urls: Sequence[str], peers: Sequence[str]) -> None:
    from data.source.address import Address

    if peers and any(Address.parse(url).local is None for url in urls):
        raise CommandUsageError(
            "--against reads only files of this machine, but some shards are URLs"
        )


def _print(screen: CommandOutput, found: dict[str, list[ReaderMeasurement]]) -> None:
    from hpckit.cli.data.reader_benchmark import OURS, RAW

    columns = ("samples/s", "MB/s", "of raw", "waiting", "first batch")
    rows = table("", *columns, right=columns)
    for name, all_ in found.items():
        speed, waits = (
            _median(one.samples_per_s for one in all_),
            _median(one.wait_share for one in all_),
        )
        rows.add_row(
            name,
            "" if speed is None else f"{speed:,.0f}",
            f"{median(one.mb_per_s for one in all_):,.0f}",
            "" if name == RAW else f"{median(ratios(all_, found[RAW]) or [0.0]):.2f}",
            "" if waits is None else f"{waits:.1%}",
            "" if name == RAW else f"{1e3 * median(one.first_s for one in all_):,.0f} ms",
        )
    screen.table(rows)
    screen.line(found[OURS][-1].diagnosis)


def _median(values: Any) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None


def _plain(what: ReaderBenchmark, found: dict[str, list[ReaderMeasurement]]) -> dict[str, Any]:
    from hpckit.cli.data.reader_benchmark import OURS, RAW

    settings = {name: value for name, value in asdict(what).items() if name != "urls"}
    return {
        "settings": {**settings, "cache": None if what.cache is None else str(what.cache)},
        "diagnosis": found[OURS][-1].diagnosis,
        "arms": {
            name: {
                "rounds": [
                    {**asdict(one), "samples_per_s": one.samples_per_s, "mb_per_s": one.mb_per_s}
                    for one in all_
                ],
                "samples_per_s": _median(one.samples_per_s for one in all_),
                "mb_per_s": median(one.mb_per_s for one in all_),
                "wait_share": _median(one.wait_share for one in all_),
                "of_raw": median(ratios(all_, found[RAW]) or [0.0]),
            }
            for name, all_ in found.items()
        },
    }
