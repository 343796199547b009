"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ShardsArg = Annotated[
    list[str],
    typer.Argument(
        metavar="SHARDS",
        help="A folder or URL with a dataset.index, tars, folders, globs, or patterns such as "
        "train-{000000..000099}.tar.",
        show_default=False,
    ),
]
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
