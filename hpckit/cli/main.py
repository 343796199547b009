"""The `hpckit` command line. No command imports torch."""

from __future__ import annotations

from typing import Annotated

import typer

from hpckit.cli import alerts, bench, ckpt, data, drill, evaluation, nodes, plan
from hpckit.cli.cancel import cancel
from hpckit.cli.common.exit_status import EXIT_STATUS_HELP
from hpckit.cli.cost import cost
from hpckit.cli.doctor import doctor
from hpckit.cli.fork import fork
from hpckit.cli.health import health
from hpckit.cli.init import init
from hpckit.cli.launch import SETTINGS, UnparsedCommand, launch
from hpckit.cli.logs import logs
from hpckit.cli.report import report
from hpckit.cli.resume import resume
from hpckit.cli.serve import serve
from hpckit.cli.status import status
from hpckit.cli.top import top
from hpckit.cli.why import why


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from hpckit.doctor.installation import version_line

        typer.echo(version_line())
        raise typer.Exit


app = typer.Typer(
    help="Tools for hpckit's runs, checkpoints and shards. Runs are started with launch.\n\n"
    + EXIT_STATUS_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _of_all(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Holds the options of the program itself."""


app.add_typer(ckpt.app, name="ckpt")
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(alerts.app, name="alerts")
app.add_typer(evaluation.app, name="eval")
app.add_typer(plan.app, name="plan")
app.add_typer(drill.app, name="drill")
app.add_typer(nodes.app, name="nodes")
app.command("init")(init)
app.command("launch", cls=UnparsedCommand, context_settings=SETTINGS)(launch)
app.command("status")(status)
app.command("top")(top)
app.command("logs")(logs)
app.command("why")(why)
app.command("cancel")(cancel)
app.command("doctor")(doctor)
app.command("health")(health)
app.command("resume")(resume)
app.command("fork")(fork)
app.command("report")(report)
app.command("cost")(cost)
app.command("serve")(serve)
