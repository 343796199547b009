"""`hpckit launch`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings with which typer leaves all arguments to launch.py."""


class UnparsedCommand(TyperCommand):
    """A command that gets its words as they were typed. typer would remove `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []


def launch(ctx: typer.Context) -> None:
    """Start or resume a run. It is launch.py for an installed hpckit.

    Example: hpckit launch launch.nproc_per_node=8 -- python train.py --lr 0.1

    hpckit launch --help prints its manual.
    """
    from hpckit.submit.composition.composition_process import begin_composition

    composition = begin_composition(ctx.args)
    from hpckit.submit.launch_command import main  # while the config is composed

    raise typer.Exit(main(ctx.args, composition))
