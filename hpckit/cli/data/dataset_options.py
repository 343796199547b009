"""Arguments and options of several commands on datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from data import TokenFiles

ShardsArg = Annotated[
    list[str],
    typer.Argument(
        metavar="SHARDS",
        help="A folder or URL with a dataset.index, tars, folders, globs, or patterns such as "
        "train-{000000..000099}.tar.",
        show_default=False,
    ),
]
DatasetArg = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        help="A folder with a dataset.index, such a file, or files that are read in place.",
        show_default=False,
    ),
]
IndexFolderOption = Annotated[Path | None, typer.Option(help="As for `index`.", show_default=False)]
CacheOption = Annotated[
    Path,
    typer.Option("--cache", metavar="DIR", help="Folder of the node's cache.", show_default=False),
]
MaybeCacheOption = Annotated[
    Path | None,
    typer.Option("--cache", metavar="DIR", help="Folder of the node's cache.", show_default=False),
]
StateOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|JSON",
        help="The state_dict() of a Loader as JSON, or a file with it (- is stdin).",
        show_default=False,
    ),
]
SeedOption = Annotated[
    int | None, typer.Option(min=0, help="As for the Loader; by default that of the state, or 0.")
]
StreamsOption = Annotated[
    int | None, typer.Option(min=1, help="As for the Loader; by default that of the state, or 48.")
]
WindowOption = Annotated[
    int | None, typer.Option(min=1, help="As for the Loader; by default that of the state, or 8.")
]
RemixEveryOption = Annotated[
    int | None,
    typer.Option(min=0, help="As for the Loader; by default that of the state or run, or 0."),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(help="Type of the tokens of a flat .bin file; by default uint16."),
]
EndOfTextOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="TOKEN",
        help="Token that ends each document of a flat .bin file, as 50256 of GPT-2.",
        show_default=False,
    ),
]
BlockSizeOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="TOKENS",
        help="Cut a flat .bin file into windows of this length; a run takes model.seq_len + 1.",
        show_default=False,
    ),
]
ColumnOption = Annotated[
    str | None,
    typer.Option(help="Column of a Hugging Face dataset with the tokens; by default input_ids."),
]


def token_files_of(
    dtype: str | None, end_of_text: int | None, block_size: int | None, column: str | None
) -> TokenFiles:
    """Return how token files are read by the options of a command. Raises DataError."""
    from data import TokenFiles

    return TokenFiles(dtype=dtype, end_of_text=end_of_text, block_size=block_size, column=column)
