"""`hpckit bench` has the commands that start runs which are only measured: profile, precision,
scaling, collectives and mlperf-checkpoint. They import submit and report inside functions."""

from __future__ import annotations

import typer

from hpckit.cli.bench.collectives import collectives
from hpckit.cli.bench.mlperf_checkpoint import mlperf_checkpoint
from hpckit.cli.bench.precision import precision
from hpckit.cli.bench.profile import profile
from hpckit.cli.bench.scaling import scaling

app = typer.Typer(help="Measure training and communication on this site.", no_args_is_help=True)
app.command("collectives")(collectives)
app.command("mlperf-checkpoint")(mlperf_checkpoint)
app.command("precision")(precision)
app.command("profile")(profile)
app.command("scaling")(scaling)
