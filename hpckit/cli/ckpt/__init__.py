"""`hpckit ckpt`: one command per file, and the selection of a store and a checkpoint. It
imports checkpointing without torch, and only once one of its commands is used; cli.data may import
store_location."""

from __future__ import annotations

import typer

from hpckit.cli.common.command_groups import DeferredGroup
from hpckit.cli.common.exit_status import EXIT_STATUS_HELP

HELP = (
    "Inspect, verify, prune, repair and convert checkpoints.\n\n"
    "PLACE is a store (a path, or a URL such as s3://bucket/folder), a run in it "
    "(STORE/runs/RUN), or a run directory or its name below ./runs. A store that does not answer "
    "is given up after 15 s. " + EXIT_STATUS_HELP
)


class _CkptGroup(DeferredGroup):
    functions = {  # noqa: RUF012
        "ls": "hpckit.cli.ckpt.ls:ls",
        "show": "hpckit.cli.ckpt.show:show",
        "status": "hpckit.cli.ckpt.status:status",
        "du": "hpckit.cli.ckpt.du:du",
        "diff": "hpckit.cli.ckpt.diff:diff",
        "verify": "hpckit.cli.ckpt.verify:verify_them",
        "prune": "hpckit.cli.ckpt.prune:prune_run",
        "pin": "hpckit.cli.ckpt.pins:pin",
        "unpin": "hpckit.cli.ckpt.pins:unpin",
        "repair": "hpckit.cli.ckpt.repair:repair",
        "flatten": "hpckit.cli.ckpt.repair:flatten",
        "compact": "hpckit.cli.ckpt.repair:compact",
        "follow": "hpckit.cli.ckpt.follow:follow",
        "export": "hpckit.cli.ckpt.export:export",
        "import": "hpckit.cli.ckpt.export:import_",
    }


app = typer.Typer(help=HELP, no_args_is_help=True, cls=_CkptGroup)
