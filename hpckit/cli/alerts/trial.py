"""`hpckit alerts test`."""

from __future__ import annotations

from typing import Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.exit_status import FOUND
from hpckit.cli.common.run_argument import JsonOption


def trial(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OVERRIDES",
            help="Overrides as for launch.py, as alerts=slack or experiment=NAME.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Send a trial message to each target of alerts that the config has.

    Example: hpckit alerts test alerts=slack alerts.email.to=[me@example.org]

    The message is sent once, from this machine: a node of the cluster may have no way to the
    Internet, or no sendmail. Exit status 1 means that a target has not accepted it.

    Keys of --json: targets (target, kinds, problem: null if the message was accepted).
    """
    import socket
    import time

    from hpckit.alerts.alert_errors import AlertError
    from hpckit.alerts.alert_message import trial_message
    from hpckit.alerts.alert_targets import alert_targets
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.submit.compose import compose_spec

    with reported_errors(json):
        out, spec = CommandOutput(json), compose_spec(overrides or ())
        targets = alert_targets(spec.alerts)
        if not targets:
            raise CommandError(
                "no target of alerts is configured; see hpckit launch --help keys alerts, and try "
                "alerts=slack with the variable SLACK_WEBHOOK_URL"
            )
        message = trial_message(spec.name, socket.gethostname(), time.time())
        found: list[dict[str, object]] = []
        for target in targets:
            problem = None
            try:
                target.send(message)
            except AlertError as error:
                problem = str(error)
            out.fact(target.name, f"not sent: {problem}" if problem else "sent")
            found.append({"target": target.name, "kinds": list(target.kinds), "problem": problem})
        out.document({"targets": found})
        if any(one["problem"] for one in found):
            raise typer.Exit(FOUND)
