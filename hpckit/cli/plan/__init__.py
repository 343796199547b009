"""`hpckit plan`: what a run will need, before it starts; and how a large one would fare."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from hpckit.cli.plan.estimate import estimate
from hpckit.cli.plan.simulate import simulate


class _Estimating(TyperGroup):
    """Takes what is no command for the words of `estimate`, which most people mean."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["estimate", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Estimating,
    help="Tell before a run starts what it will need, or how a large one would fare.\n\n"
    "hpckit plan OVERRIDES is hpckit plan estimate OVERRIDES.",
)
app.command("estimate")(estimate)
app.command("simulate")(simulate)
