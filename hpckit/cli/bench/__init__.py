"""`hpckit bench scaling`: runs on different numbers of ranks, their figures and plot. It
imports submit and report inside functions."""

from __future__ import annotations

import typer

from hpckit.cli.bench.scaling import scaling

app = typer.Typer(help="Measure training on this machine or site.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Makes typer keep the name of the only command."""


app.command("scaling")(scaling)
