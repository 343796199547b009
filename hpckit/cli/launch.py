"""`hpckit launch`."""

from __future__ import annotations

import typer

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings with which typer leaves all arguments to launch.py."""


def launch(ctx: typer.Context) -> None:
    """Start or resume a run. It is launch.py for an installed hpckit.

    Example: hpckit launch experiment=demo --dry-run

    hpckit launch --help prints its manual.
    """
    from hpckit.submit.launch_command import main

    raise typer.Exit(main(ctx.args))
