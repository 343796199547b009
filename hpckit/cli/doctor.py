"""`hpckit doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.exit_status import FOUND
from hpckit.cli.common.run_argument import JsonOption

if TYPE_CHECKING:
    from hpckit.doctor.finding import Finding

_STYLES = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "bold red"}


def doctor(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OVERRIDES", help="Overrides as for launch.py: cluster=slurm, key=value."
        ),
    ] = None,
    node: Annotated[
        bool, typer.Option("--node", help="Also inspect a node of the cluster, with a short job.")
    ] = False,
    host: Annotated[
        str | None, typer.Option(metavar="NAME", help="Inspect this node; implies --node.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check whether this site has what a run needs, and print what to change.

    Example: hpckit doctor cluster=slurm checkpoint.url=s3://bucket/ckpts --node

    It checks this machine, the checkpoint store (it writes 16 MiB there and removes them) and,
    with cluster=slurm, the settings of Slurm that affect a run. --node submits a job with the
    requests of a run, and checks that the node sees the folders of a run. Exit status 1 means
    that something will not work.

    Keys of --json: findings (part, level: ok, note, warn or fail, subject, what, do), worst.
    """
    from rich.text import Text

    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.doctor.finding import Level, worst
    from hpckit.doctor.site_examination import examine
    from hpckit.slurm.sbatch_variables import with_sbatch_variables
    from hpckit.submit.compose import compose_spec
    from hpckit.submit.preflight.checks import with_absolute_paths

    with reported_errors(json):
        asks = node or host is not None
        out = CommandOutput(json)
        spec = with_absolute_paths(compose_spec(overrides or ()), Path.cwd())
        spec, notes = with_sbatch_variables(spec, os.environ)
        for line in notes:
            print(f"note: {line}", file=sys.stderr)
        found: list[tuple[str, Finding]] = []
        if asks and spec.cluster.slurm is None:
            do = "add cluster=slurm, or the site's own file from hpckit init"
            raise CommandError(f"--node: {spec.cluster.kind} has no nodes to inspect: {do}")
        for part, one in examine(spec, Path(spec.root), asks, host):
            if not found or found[-1][0] != part:
                out.line(Text(part, style="bold"))
            found.append((part, one))
            mark = Text(f"  {one.level:<5}", style=_STYLES[one.level])
            out.line(mark + Text(f" {one.subject}: {one.what}"))
            if one.do:
                out.dim(f"        {one.do}")
        result = worst(one for _, one in found)
        out.document({"findings": [_record(*pair) for pair in found], "worst": result.value})
    if result is Level.FAIL:
        raise typer.Exit(FOUND)


def _record(part: str, one: Finding) -> dict[str, str]:
    return {
        "part": part,
        "level": one.level.value,
        "subject": one.subject,
        "what": one.what,
        "do": one.do,
    }
