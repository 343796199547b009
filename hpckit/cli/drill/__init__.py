"""`hpckit drill`: a fault in a run of one's own, or a campaign of them in runs made for it."""

from __future__ import annotations

import typer

from hpckit.cli.defaulting import Defaulting
from hpckit.cli.drill.campaign import campaign, judge
from hpckit.cli.drill.single import single


class _Single(Defaulting):
    default = "run"


app = typer.Typer(
    cls=_Single,
    no_args_is_help=True,
    help="Cause real faults, to see that runs come back.\n\n"
    "hpckit drill RUN KIND is hpckit drill run RUN KIND.",
)
app.command("run")(single)
app.command("campaign")(campaign)
app.command("judge")(judge)
