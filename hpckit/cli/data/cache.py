"""`hpckit data cache`, which lists, verifies and shrinks a node's cache."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.byte_sizes import parse_size
from hpckit.cli.common.command_output import CommandOutput, clean, count, size, table
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import DAMAGED
from hpckit.cli.data.dataset_errors import guarded
from hpckit.cli.data.dataset_options import CacheOption
from hpckit.text.quantities import ago, span

if TYPE_CHECKING:
    from data.cache.cache_maintenance import CachedShardInfo

app = typer.Typer(help="List, verify and shrink a node's cache of shards.", no_args_is_help=True)


@app.command("ls")
@guarded
def ls(
    cache: CacheOption,
    most: Annotated[int, typer.Option(min=1, help="Most rows to print.")] = 100,
    json: JsonOption = False,
) -> None:
    """List the shards in a cache, and when live jobs will read them.

    Example: hpckit data cache ls --cache /nvme/cache
    """
    from data.cache.cache_maintenance import listed

    screen = CommandOutput(json)
    found = listed(cache)
    rows = table("size", "state", "last used", "next use", "url", right=("size",), folded=("url",))
    for one in found[:most]:
        whole = "whole" if one.whole else "partial"
        used = ago(one.used_s, time.time())
        rows.add_row(size(one.entry.bytes), whole, used, _next(one), clean(one.url))
    if found:
        screen.table(rows)
    if len(found) > most:
        screen.line(f"and {len(found) - most:,} more: --most shows them")
    total = sum(one.entry.bytes for one in found)
    screen.line(f"{count(len(found), 'shard')}, {size(total)}")
    screen.document(
        {
            "bytes": total,
            "shards": [
                {
                    "url": one.url,
                    "bytes": one.entry.bytes,
                    "whole": one.whole,
                    "used": one.used_s,
                    "next_use_s": one.next_use_s,
                }
                for one in found
            ],
        }
    )


@app.command("verify")
@guarded
def verify(cache: CacheOption, json: JsonOption = False) -> int:
    """Hash all shards in a cache; damaged ones are set aside and downloaded again when read.

    Example: hpckit data cache verify --cache /nvme/cache
    """
    from data.cache.cache_maintenance import listed, verified
    from hpckit.cli.common.progress_bar import progress_bar

    screen = CommandOutput(json)
    found = listed(cache)
    urls = {one.entry.stem: one.url for one in found}
    damaged: list[str] = []
    checked = total = 0
    with progress_bar("verifying") as progress:
        for entry, right in verified(cache):
            checked += 1
            total += entry.bytes
            progress(checked, sum(one.whole for one in found))
            if not right:
                damaged.append(urls.get(entry.stem, "?"))
    for url in damaged:
        screen.line(f"damaged and quarantined: {url}")
    outcome = f"{len(damaged):,} damaged" if damaged else "all whole"
    screen.line(f"{count(checked, 'shard')} of {size(total)} checked: {outcome}")
    screen.document({"checked": checked, "bytes": total, "damaged": damaged})
    return DAMAGED if damaged else 0


@app.command("prune")
@guarded
def prune(
    cache: CacheOption,
    to: Annotated[str, typer.Option(metavar="SIZE", help="Size to shrink it to, as 200GB; or 0.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be freed.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove shards: first those that no running job plans to read, then those needed last.

    Example: hpckit data cache prune --cache /nvme/cache --to 200GB

    Open shards are kept.
    """
    from data.cache.cache_maintenance import listed, prunable, prune

    screen = CommandOutput(json)
    budget = 0 if to.strip() == "0" else parse_size(to)
    gained = prunable(cache, budget) if dry_run else prune(cache, budget)
    left = listed(cache)
    holds = sum(one.entry.bytes for one in left) - (gained if dry_run else 0)
    would = "would be " if dry_run else ""
    screen.line(f"{size(gained)} {would}removed, {size(holds)} {'would ' * dry_run}stay")
    if holds > budget:
        screen.note("no more can be removed: the other shards are open, or being downloaded")
    screen.document({"dry_run": dry_run, "gained": gained, "bytes": holds})


def _next(one: CachedShardInfo) -> str:
    if one.next_use_s is None:
        return ""
    return "now" if one.next_use_s <= 0 else f"in {span(one.next_use_s)}"
