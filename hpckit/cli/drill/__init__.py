"""`hpckit drill`, which causes one fault in a run, or a campaign of faults. It imports faults."""

from __future__ import annotations

import typer

from hpckit.cli.common.command_groups import DefaultCommandGroup
from hpckit.cli.drill.campaign import campaign, judge
from hpckit.cli.drill.single_fault import single


class _Single(DefaultCommandGroup):
    default = "run"


app = typer.Typer(
    cls=_Single,
    no_args_is_help=True,
    help="Cause real faults, to test that runs recover.\n\n"
    "hpckit drill RUN KIND is hpckit drill run RUN KIND.",
)
app.command("run")(single)
app.command("campaign")(campaign)
app.command("judge")(judge)
