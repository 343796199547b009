"""`hpckit data`: make shards, index them, check them and look into them."""

from __future__ import annotations

import typer

from hpckit.cli.data.index import index
from hpckit.cli.data.ls import ls
from hpckit.cli.data.pack import pack
from hpckit.cli.data.verify import verify_shards

HELP = (
    "Make WebDataset shards, index them, check them and look into them.\n\n"
    "Exit status: 0 fine, 1 damage found, 2 not possible as asked, 3 a store or the machine failed."
)

app = typer.Typer(help=HELP, no_args_is_help=True)
app.command("pack")(pack)
app.command("index")(index)
app.command("verify")(verify_shards)
app.command("ls")(ls)
