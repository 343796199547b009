"""`hpckit data shuffle-report`, which measures how well an order shuffles."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_output import CommandOutput, count, size
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.cli.data.dataset_errors import guarded
from hpckit.cli.data.dataset_options import SeedOption, ShardsArg, StreamsOption, WindowOption

if TYPE_CHECKING:
    from data.order.shuffle_quality import ShuffleReport

GOOD = 0.9  # a ratio to the result of a full shuffle


@guarded
def shuffle_report(
    shards: ShardsArg,
    streams: StreamsOption = None,
    window: WindowOption = None,
    seed: SeedOption = None,
    batch: Annotated[
        int | None,
        typer.Option(min=2, help="Global batch size; by default 1024, or fewer."),
    ] = None,
    epoch: Annotated[
        int, typer.Option(min=0, help="Number of the epoch; each has another order.")
    ] = 0,
    json: JsonOption = False,
) -> None:
    """Compare a Loader's order with a full shuffle of the same samples; 1 is equally random.

    Example: hpckit data shuffle-report shards --window 16
    """
    from data.order.shuffle_quality import shuffle_report as measure
    from hpckit.cli.data.dataset_opening import OrderOverrides, open_shards, order_of

    screen = CommandOutput(json)
    dataset = open_shards(shards)
    order = order_of(dataset, None, OrderOverrides(seed, streams, window)).order
    taken = batch or min(1024, order.samples)
    try:
        with screen.waiting("shuffling"):
            found = measure(order, batch=taken, epoch=epoch)
    except ValueError as error:
        raise CommandUsageError(str(error)) from None
    each = dataset.manifest.bytes
    most = int(each[each.argsort()[-found.live_shards :]].sum())
    _print(screen, found, taken, most)
    screen.document(
        {
            "samples": order.samples,
            "shards": len(dataset.manifest),
            "streams": order.streams,
            "window": order.window,
            "batch": taken,
            "epoch": epoch,
            "live_bytes": most,
            **asdict(found),
        }
    )


def _print(screen: CommandOutput, found: ShuffleReport, batch: int, live_bytes: int) -> None:
    reunion = (
        "too large to compute" if found.reunion_ratio is None else f"{found.reunion_ratio:.3f}"
    )
    rows = {
        "shards": f"{found.shards_per_batch:.1f} in a batch of {batch:,}: "
        f"{found.shards_per_batch_ratio:.3f} of a full shuffle",
        "same shard": f"{found.same_shard_ratio:.3f} times as many pairs of a batch as there",
        "reunions": f"{reunion}, of pairs that share a batch in the next epoch too",
        "distance": f"{found.neighbour_distance:.3f} between neighbours",
        "live": f"{count(found.live_shards, 'shard')} at a time: a cache needs {size(live_bytes)}",
    }
    for name, text in rows.items():
        screen.fact(name, text)
    screen.line(advice(found))


def advice(found: ShuffleReport) -> str:
    """Return advice as one line."""
    if found.shards_per_batch_ratio >= GOOD:
        return "as good as a full shuffle, or nearly"
    return (
        "batches draw from too few shards: more --streams or a wider --window mix more, and need "
        "more cache; or write the shards shuffled"
    )
