"""`hpckit data`: one command per file, and the opening of shards and positions in a stream. It
imports data and cli.ckpt.store_location."""

from __future__ import annotations

import typer

from hpckit.cli.common.exit_status import EXIT_STATUS_HELP
from hpckit.cli.data import cache
from hpckit.cli.data.bench import bench
from hpckit.cli.data.index import index
from hpckit.cli.data.ls import ls
from hpckit.cli.data.pack import pack
from hpckit.cli.data.shuffle_report import shuffle_report
from hpckit.cli.data.verify import verify_shards
from hpckit.cli.data.warm import warm
from hpckit.cli.data.where import where

HELP = (
    "Make WebDataset shards, index, check and measure them, and cache them on the nodes that "
    "train.\n\n" + EXIT_STATUS_HELP
)

app = typer.Typer(help=HELP, no_args_is_help=True)
app.command("pack")(pack)
app.command("index")(index)
app.command("verify")(verify_shards)
app.command("ls")(ls)
app.command("warm")(warm)
app.command("where")(where)
app.command("bench")(bench)
app.command("shuffle-report")(shuffle_report)
app.add_typer(cache.app, name="cache")
