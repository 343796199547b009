"""`hpckit launch`."""

from __future__ import annotations

import typer

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""All arguments are parsed by launch.py."""


def launch(ctx: typer.Context) -> None:
    """Start a run, or go on with it: launch.py, wherever hpckit is installed.

    Example: hpckit launch experiment=demo --dry-run

    hpckit launch --help tells of it.
    """
    from hpckit.submit.launch_command import main

    raise typer.Exit(main(ctx.args))
