"""`hpckit data pack`, which packs a folder of files, or token files, into shards."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_output import CommandOutput, count, size
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import CommandUsageError
from hpckit.cli.data.dataset_errors import guarded
from hpckit.cli.data.dataset_options import (
    BlockSizeOption,
    ColumnOption,
    DtypeOption,
    EndOfTextOption,
    token_files_of,
)

if TYPE_CHECKING:
    from data.write.pack_report import PackReport


@guarded
def pack(
    source: Annotated[
        str,
        typer.Argument(help="Folder of files, `stdlib` for Python's sources, or a token file."),
    ],
    out: Annotated[Path, typer.Argument(help="Folder for the shards; it must not exist yet.")],
    suffix: Annotated[
        list[str] | None, typer.Option(help="Only files with this suffix; may be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Names or glob patterns of files and folders to leave out."),
    ] = None,
    samples_per_shard: Annotated[int, typer.Option(min=1, help="Number of samples per tar.")] = 256,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A tokenizer.json of Hugging Face, to store tokens, which the index counts.",
            show_default=False,
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="With --tokenizer: token that ends each document, if not <|endoftext|>.",
            show_default=False,
        ),
    ] = None,
    dtype: DtypeOption = None,
    end_of_text: EndOfTextOption = None,
    block_size: BlockSizeOption = None,
    column: ColumnOption = None,
    json: JsonOption = False,
) -> None:
    """Pack a folder of files into WebDataset tars with an index, optionally as tokens.

    Example: hpckit data pack texts shards --suffix .txt

    The source may also be tokens: a .bin file of nanoGPT or Megatron, or a folder that save_to_disk
    of Hugging Face's datasets wrote.
    """
    # imported here, because it takes longer than the help of other commands
    from data.index.token_files.token_file_listing import first_token_file
    from data.write.folder_pack import pack_folder
    from data.write.stdlib_corpus import python_stdlib
    from data.write.token_pack import pack_token_files
    from data.write.tokeniser import Tokeniser
    from hpckit.cli.common.progress_bar import progress_bar

    screen = CommandOutput(json)
    if end is not None and tokenizer is None:
        raise CommandUsageError(f"--end {end}: requires --tokenizer")
    options = token_files_of(dtype, end_of_text, block_size, column)
    if (tokenizer or suffix or exclude) and first_token_file(source):
        raise CommandUsageError(
            f"{source} holds tokens: --tokenizer, --suffix and --exclude are for files of text"
        )
    with progress_bar("packing") as progress:
        packed = pack_token_files(
            source, out, options, samples_per_shard=samples_per_shard, progress=progress
        )
    if packed is not None:
        screen.line(_sentence(packed, out))
        screen.document({"out": str(out), **asdict(packed)})
        return
    tokeniser = Tokeniser(tokenizer, end) if tokenizer else None
    folder, left_out = python_stdlib() if source == "stdlib" else (Path(source), ())
    suffixes = suffix or ([".py"] if source == "stdlib" else [])
    with progress_bar("packing") as progress:
        report = pack_folder(
            folder,
            out,
            suffixes=suffixes,
            exclude=[*left_out, *(exclude or [])],
            samples_per_shard=samples_per_shard,
            tokeniser=tokeniser,
            progress=progress,
        )
    screen.line(_sentence(report, out))
    screen.document({"out": str(out), **asdict(report)})


def _sentence(report: PackReport, out: Path) -> str:
    skipped = "".join(f"\n  skipped {n}: {why}" for why, n in sorted(report.skipped.items()))
    samples, shards = count(report.samples, "sample"), count(len(report.shards), "shard")
    files = count(report.files, "file")
    of = f", as tokens of {report.vocabulary.size:,} different ones" if report.vocabulary else ""
    return f"{samples} of {files}, {size(report.bytes)}{of}, in {shards}: {out}{skipped}"
