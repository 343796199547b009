"""`hpckit data verify`, which checks whether shards match their index."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hpckit.cli.common.command_output import CommandOutput, count, listing, size
from hpckit.cli.common.exit_status import NOT_ALL
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import DAMAGED, CommandUsageError
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

MOST = 20  # damaged shards that are printed; --json has all
_NO_CHECKSUMS = (
    "next: the index has no checksums to compare contents with; if the shards are known to be "
    "whole now, `hpckit data index --hash` stores them"
)
_IN_PLACE = (
    "next: these files have no checksums to compare contents with; "
    "`hpckit data pack` makes shards of token files and of folders of files, which have them"
)


@guarded
def verify_shards(
    dataset: DatasetArg,
    full: Annotated[
        bool, typer.Option("--full", help="Read all bytes, which needs an index made with --hash.")
    ] = False,
    index_folder: IndexFolderOption = None,
    dtype: DtypeOption = None,
    end_of_text: EndOfTextOption = None,
    block_size: BlockSizeOption = None,
    column: ColumnOption = None,
    json: JsonOption = False,
) -> int:
    """Read the headers of all shards and print which differ from the index, and how.

    Example: hpckit data verify shards --full
    """
    from data.index.dataset_verification import unlisted_tars, verify
    from data.index.manifest import open_manifest
    from data.index.shard_listing import checked_shards
    from hpckit.cli.common.progress_bar import progress_bar
    from hpckit.system.store_timeouts import interactive_sources

    screen, dataset = CommandOutput(json), str(checked_shards(dataset))
    options = token_files_of(dtype, end_of_text, block_size, column)
    in_place = open_in_place(dataset, options)
    sources = interactive_sources()
    if in_place is None:
        _refuse_shard(Path(dataset))
        manifest = open_manifest(dataset, source=sources)
        others = unlisted_tars(Path(dataset), manifest)
    else:
        manifest, others = in_place, []
    with progress_bar("verifying") as progress:
        verdicts = verify(
            manifest, full=full, source=sources, index_folder=index_folder, progress=progress
        )
    wrong = [verdict for verdict in verdicts if verdict.problem]
    for verdict in wrong[:MOST]:
        screen.line(f"damaged: {verdict.url}: {verdict.problem}")
    if len(wrong) > MOST:
        screen.line(f"and {len(wrong) - MOST:,} more: --json lists them")
    unhashed = sum(not verdict.hashed for verdict in verdicts) if full else 0
    total = size(sum(verdict.bytes for verdict in verdicts))
    screen.line(
        f"{count(len(verdicts), 'shard')} of {total} checked: "
        f"{_outcome(len(wrong), unhashed, full, in_place is not None)}"
    )
    if others:
        screen.line(f"not verified, as the index does not list them: {listing(others)}")
    if unhashed:
        screen.line(_NO_CHECKSUMS if in_place is None else _IN_PLACE)
    if wrong and in_place is None:
        screen.line(
            "next: fetch these again, or run `hpckit data index --hash` if the change was intended"
        )
    body = {"full": full, "shards": [asdict(verdict) for verdict in verdicts]}
    screen.document({**body, "unlisted": others})
    return DAMAGED if wrong else NOT_ALL if unhashed else 0


def _refuse_shard(path: Path) -> None:
    """Raise CommandUsageError for a file that is no index, so that it is not taken for a damaged
    one."""
    from data.index.manifest import has_magic

    if not path.is_file() or path.suffix == ".index" or has_magic(path):
        return
    if path.suffix == ".tar":
        raise CommandUsageError(
            f"{path} is a shard, which is verified by its index: give the folder that has the "
            f"index, or make one by `hpckit data index {shlex.quote(str(path))} --out FOLDER`"
        )
    raise CommandUsageError(
        f"{path} is neither an index nor a file that is read in place, such as a token file; tars "
        "are verified by their index"
    )


def _outcome(wrong: int, unhashed: int, full: bool, in_place: bool) -> str:
    if wrong:
        found = f"{wrong:,} damaged"
    elif in_place:
        found = "all samples can be read" if full else "their layout is right; --full reads samples"
    else:
        found = "all whole" if full and not unhashed else "all headers are right"
    if unhashed:
        found += f"; the contents of {count(unhashed, 'shard')} were not verified"
    return found
