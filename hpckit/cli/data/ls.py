"""`hpckit data ls`, which lists the content of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpckit.cli.common.command_output import CommandOutput, clean, size, table
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.cli.data.dataset_errors import guarded
from hpckit.cli.data.dataset_opening import open_in_place
from hpckit.cli.data.dataset_options import (
    BlockSizeOption,
    ColumnOption,
    DatasetArg,
    DtypeOption,
    EndOfTextOption,
    IndexFolderOption,
    token_files_of,
)
from hpckit.cli.data.index import facts, sentence

if TYPE_CHECKING:
    from data.index.manifest import Manifest
    from data.index.shard.shard_index import ShardIndex


@guarded
def ls(
    dataset: DatasetArg,
    shard: Annotated[
        int | None, typer.Option(min=0, help="List the samples of this shard.", show_default=False)
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Most rows to print.")] = 100,
    index_folder: IndexFolderOption = None,
    dtype: DtypeOption = None,
    end_of_text: EndOfTextOption = None,
    block_size: BlockSizeOption = None,
    column: ColumnOption = None,
    json: JsonOption = False,
) -> None:
    """List the shards of a dataset, or the samples of one of them.

    Example: hpckit data ls shards --shard 3
    """
    from data.index.manifest import open_manifest
    from data.index.shard_listing import checked_shards
    from hpckit.system.store_timeouts import interactive_sources

    screen, source = CommandOutput(json), interactive_sources()
    dataset = str(checked_shards(dataset))
    options = token_files_of(dtype, end_of_text, block_size, column)
    in_place = open_in_place(dataset, options)
    manifest = open_manifest(dataset, source=source) if in_place is None else in_place
    if shard is None:
        _list_shards(screen, manifest, most)
    elif shard < len(manifest):
        index = manifest.open_shard(shard, source=source, index_folder=index_folder)
        _list_samples(screen, index, most)
    else:
        raise CommandUsageError(f"there is no shard {shard}: the last one is {len(manifest) - 1}")


def _list_shards(screen: CommandOutput, manifest: Manifest, most: int) -> None:
    listed = [manifest.row(i) for i in range(min(most, len(manifest)))]
    has_tokens = any(row.tokens is not None for row in listed)
    numbers = ("samples", "size", *(["tokens"] if has_tokens else []))
    rows = table("shard", *numbers, "url", right=("shard", *numbers), folded=("url",))
    for i, row in enumerate(listed):
        tokens = [f"{row.tokens:,}" if row.tokens is not None else ""] if has_tokens else []
        rows.add_row(str(i), f"{row.samples:,}", size(row.bytes), *tokens, clean(row.url))
    screen.table(rows)
    _print_rest(screen, len(manifest) - len(listed))
    screen.line(sentence(manifest))
    screen.document({**facts(manifest), "listed": [_plain(row._asdict()) for row in listed]})


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "tag"}


def _list_samples(screen: CommandOutput, index: ShardIndex, most: int) -> None:
    has_tokens = index.n_tokens is not None
    numbers = ("offset", *(["tokens"] if has_tokens else []))
    columns = ("sample", *numbers, "key", "members")
    rows = table(*columns, right=("sample", *numbers), folded=("key", "members"))
    listed: list[dict[str, Any]] = []
    for i in range(min(most, len(index))):
        tokens = None if index.n_tokens is None else int(index.n_tokens[i])
        members = [member._asdict() for member in index.members(i)]
        begin, end = index.span(i)
        key = index.key(i)
        listed.append(
            {"key": key, "begin": begin, "end": end, "tokens": tokens, "members": members}
        )
        sizes = ", ".join(f"{member['extension']} {size(member['size'])}" for member in members)
        counted = [] if tokens is None else [f"{tokens:,}"]
        rows.add_row(str(i), str(begin), *counted, clean(key), clean(sizes))
    screen.table(rows)
    _print_rest(screen, len(index) - len(listed))
    screen.document({"samples": len(index), "listed": listed})


def _print_rest(screen: CommandOutput, more: int) -> None:
    if more > 0:
        screen.line(f"and {more:,} more: --most shows them")
