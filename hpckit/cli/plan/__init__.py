"""`hpckit plan`, with the commands estimate and simulate. It imports planner."""

from __future__ import annotations

import typer

from hpckit.cli.common.default_command import DefaultCommandGroup
from hpckit.cli.plan.estimate import estimate
from hpckit.cli.plan.simulate import simulate


class _Estimating(DefaultCommandGroup):
    default = "estimate"
    is_default_alone = True


app = typer.Typer(
    cls=_Estimating,
    help="Estimate what a run needs before it starts, or simulate the goodput of a large job.\n\n"
    "hpckit plan OVERRIDES is hpckit plan estimate OVERRIDES.",
)
app.command("estimate")(estimate)
app.command("simulate")(simulate)
