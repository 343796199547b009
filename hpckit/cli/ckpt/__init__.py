"""`hpckit ckpt`: one command per file, and the selection of a store and a checkpoint. It
imports checkpointing without torch; cli.data may import store_location."""

from __future__ import annotations

import typer

from hpckit.cli.ckpt.diff import diff
from hpckit.cli.ckpt.du import du
from hpckit.cli.ckpt.export import export, import_
from hpckit.cli.ckpt.ls import ls
from hpckit.cli.ckpt.pins import pin, unpin
from hpckit.cli.ckpt.prune import prune_run
from hpckit.cli.ckpt.repair import compact, flatten, repair
from hpckit.cli.ckpt.show import show
from hpckit.cli.ckpt.status import status
from hpckit.cli.ckpt.verify import verify_them
from hpckit.cli.common.exit_status import TOLD

HELP = (
    "Inspect, verify, prune, repair and convert checkpoints.\n\n"
    "PLACE is a store (a path, or a URL such as s3://bucket/folder), a run in it "
    "(STORE/runs/RUN), or a run directory. A store that does not answer is given up after 15 s. "
    + TOLD
)

app = typer.Typer(help=HELP, no_args_is_help=True)
app.command("ls")(ls)
app.command("show")(show)
app.command("status")(status)
app.command("du")(du)
app.command("diff")(diff)
app.command("verify")(verify_them)
app.command("prune")(prune_run)
app.command("pin")(pin)
app.command("unpin")(unpin)
app.command("repair")(repair)
app.command("flatten")(flatten)
app.command("compact")(compact)
app.command("export")(export)
app.command("import")(import_)
