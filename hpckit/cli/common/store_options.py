"""Arguments and options of several commands on checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

PlaceArg = Annotated[
    str,
    typer.Argument(
        metavar="PLACE",
        help="A store (path or URL), a run in it (STORE/runs/RUN), a run directory, or its name "
        "below ./runs.",
        show_default=False,
    ),
]
StepArg = Annotated[
    str,
    typer.Argument(
        metavar="STEP",
        help="A step, latest, best, best:METRIC[:max], a mark's name, an id, or its beginning.",
        show_default=False,
    ),
]
MaybeStepArg = Annotated[
    str | None,
    typer.Argument(metavar="STEP", help="As in `show`; without it, all.", show_default=False),
]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="Name of the run, if there are several.")
]
TensorOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tensor",
        metavar="GLOB",
        help="Only matching names, as 'model/*.weight'; may be repeated.",
    ),
]
