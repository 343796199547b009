"""`hpckit eval`, which evaluates a checkpoint, or lists the evaluations of a run. It imports
evaluation and report inside functions."""

from __future__ import annotations

import typer

from hpckit.cli.common.command_groups import DefaultCommandGroup
from hpckit.cli.evaluation.ls import ls
from hpckit.cli.evaluation.run import run


class _Evaluating(DefaultCommandGroup):
    default = "run"


app = typer.Typer(
    cls=_Evaluating,
    no_args_is_help=True,
    help="Evaluate checkpoints of runs, and list their evaluations.\n\n"
    "hpckit eval RUN@STEP is hpckit eval run RUN@STEP.",
)
app.command("run")(run)
app.command("ls")(ls)
