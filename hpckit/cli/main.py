"""The `hpckit` command line. No command imports torch."""

from __future__ import annotations

import typer

from hpckit.cli import bench, ckpt, data, plan, run
from hpckit.cli.cancel import cancel
from hpckit.cli.drill import drill
from hpckit.cli.logs import logs
from hpckit.cli.status import status
from hpckit.cli.why import why

app = typer.Typer(
    help="Tools for hpckit's runs, checkpoints and shards. Runs are started with launch.py.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(ckpt.app, name="ckpt")
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(plan.app, name="plan")
app.command("status")(status)
app.command("logs")(logs)
app.command("why")(why)
app.command("cancel")(cancel)
app.command("resume")(run.resume)
app.command("drill")(drill)
app.command("report")(run.report)
