"""`hpckit alerts`, which sends a trial message to the targets of alerts. It imports alerts and
submit inside functions."""

from __future__ import annotations

import typer

from hpckit.cli.alerts.trial import trial

app = typer.Typer(help="Messages to people about runs.", no_args_is_help=True)
app.callback()(lambda: None)  # else the only command would be no group
app.command("test")(trial)
