"""`hpckit plan`: estimate and simulate. Imports planner."""

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
    help="Tell before a run starts what it will need, or how a large one would fare.\n\n"
    "hpckit plan OVERRIDES is hpckit plan estimate OVERRIDES.",
)
app.command("estimate")(estimate)
app.command("simulate")(simulate)
