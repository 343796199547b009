"""`hpckit init`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import JsonOption

if TYPE_CHECKING:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.init.site_description import DescribedSite


class InitPart(StrEnum):
    """The parts that can be generated."""

    STARTER = "starter"
    SITE = "site"
    WRAPPERS = "wrappers"


def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the project; it is created.")] = Path(),
    only: Annotated[
        list[InitPart] | None,
        typer.Option("--only", help="Create only this part; may be repeated."),
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="Name of the site's file; by default Slurm's ClusterName.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="Partition; by default Slurm's default, or one with GPUs.")
    ] = None,
    account: Annotated[
        str | None, typer.Option(help="Account to charge; by default your default account.")
    ] = None,
    node: Annotated[
        bool, typer.Option("--node", help="Run a short job that inspects a node.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Create a project: a config for this site, and a training function that survives preemption.

    Example: hpckit init mine

    Then: cd mine && hpckit launch experiment=first

    starter: train.py, its experiment and its test. site: conf/cluster/SITE.yaml from what Slurm
    reports; comments say which values were found and which are assumed. wrappers (only with
    --only): scripts for sbatch and salloc. If one of the files exists, nothing is written.

    Keys of --json: folder, files, site (name, partition, keys: name, value, how: found or assumed,
    why) or null.
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.init.project_files import starter, wrappers, write
    from hpckit.init.site_choice import SiteRequest
    from hpckit.init.site_description import describe

    parts = set(only or (InitPart.STARTER, InitPart.SITE))
    with reported_errors(json):
        out, files, found = CommandOutput(json), [], None
        if InitPart.SITE in parts:
            with out.waiting("asking Slurm"):
                found = describe(site, SiteRequest(partition, account), node)
            if found is None and (only or any((site, partition, account, node))):
                raise CommandError(
                    "Slurm is not available here (no scontrol): load its module, or work on a "
                    "login node"
                )
        files += [found.file] if found else []
        files += starter() if InitPart.STARTER in parts else []
        files += wrappers() if InitPart.WRAPPERS in parts else []
        try:
            write(files, folder)
        except OSError as error:
            raise CommandError(f"cannot write to {folder}: {error.strerror}") from None
        for file in files:
            out.line(f"wrote {folder / file.name}")
        out.document({"folder": str(folder), "files": [f.name for f in files], **_record(found)})
        _print_next_steps(out, folder, parts, found)


def _print_next_steps(
    out: CommandOutput, folder: Path, parts: set[InitPart], found: DescribedSite | None
) -> None:
    """Print what to check, and the next commands."""
    name = found.name if found else None
    if found:
        assumed = [key.name for key in found.site.keys if key.how == "assumed"]
        out.line(f"partition {found.site.partition}; assumed, please check: {', '.join(assumed)}")
    elif InitPart.SITE in parts:
        out.line(
            "Slurm is not available here: runs use this machine (cluster=local); on a login node,"
        )
        out.line("    hpckit init --only site   adds the file of its cluster")
    out.dim(f"    cd {folder}")
    if InitPart.STARTER in parts:
        out.dim("    hpckit launch experiment=first")
    if name:
        out.dim(f"    hpckit doctor cluster={name} --node")
        out.dim(f"    hpckit launch cluster={name} experiment=... --dry-run")
    if InitPart.WRAPPERS in parts:
        out.dim("    HPCKIT_PYTHON=... sbatch slurm/train.sbatch ...   # the one with hpckit")


def _record(found: DescribedSite | None) -> dict[str, object]:
    if found is None:
        return {"site": None}
    keys = [
        {"name": key.name, "value": key.value, "how": key.how, "why": key.why}
        for key in found.site.keys
    ]
    return {"site": {"name": found.name, "partition": found.site.partition, "keys": keys}}
