"""`hpckit plan`, with the commands estimate and simulate. It imports planner."""

from __future__ import annotations

import shlex
from typing import Any

import typer

from hpckit.cli.common.command_groups import DefaultCommandGroup
from hpckit.cli.plan.estimate import PROGRAM, estimate
from hpckit.cli.plan.simulate import simulate


class _Estimating(DefaultCommandGroup):
    default = "estimate"
    is_default_alone = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args and args[0] != "simulate":
            given = shlex.join(word for word in args[: args.index("--")] if word != self.default)
            ctx.fail(PROGRAM.format(keys=f"{given} " if given else ""))
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Estimating,
    help="Estimate what a run needs before it starts, or simulate the goodput of a large job.\n\n"
    "hpckit plan OVERRIDES is hpckit plan estimate OVERRIDES.",
)
app.command("estimate")(estimate)
app.command("simulate")(simulate)
