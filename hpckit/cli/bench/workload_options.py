"""Arguments and options of the commands that train a model to measure it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WorkloadOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OVERRIDES",
        help="Overrides as for launch.py: group=option, key=value; by default model=resnet_nano.",
    ),
]
PageOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="File of the page, which ends in .html.")
]
