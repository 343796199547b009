"""`hpckit nodes`, which shows and changes the suspect list of a site."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.command_groups import DefaultCommandGroup
from hpckit.cli.common.exit_status import FOUND
from hpckit.cli.common.run_argument import JsonOption

if TYPE_CHECKING:
    from hpckit.config.spec import RunSpec
    from hpckit.suspects.suspect_folder import SuspectFolder
    from hpckit.suspects.suspect_record import RecordKind, SuspectNode, SuspectView

_CLEAR_HOURS = 14 * 24.0


class _Nodes(DefaultCommandGroup):
    default = "ls"
    is_default_alone = True


app = typer.Typer(
    cls=_Nodes,
    help="Show nodes that runs have excluded and other runs do without.\n\n"
    "hpckit nodes [OVERRIDES] is hpckit nodes ls [OVERRIDES].",
)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OVERRIDES",
        help="Overrides as for launch.py, such as cluster=SITE, by default slurm.",
    ),
]
NamesAndOverrides = Annotated[
    list[str],
    typer.Argument(
        metavar="NODE... [OVERRIDES]",
        help="Names of nodes; words with = are overrides as for launch.py.",
    ),
]
WhyOption = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="Reason to record, such as a repair.")
]


@app.command("ls")
def ls(overrides: Overrides = None, json: JsonOption = False) -> None:
    """List the suspects of this cluster: who reported them, why, until when, and their checks.

    Example: hpckit nodes cluster=mine

    Below each is the command by which an administrator drains it. Runs leave out at most a quarter
    of a partition, and none without which a job could not be placed.

    Keys of --json: folder, cluster, suspects (node, reason, time, expires, is_unhealthy, verdict:
    unchecked, healthy or unhealthy; admin; reports: node, kind, time, expires, reason,
    is_unhealthy, run, job, event, count, user), problems.
    """
    from hpckit.cli.common.command_output import CommandOutput, count, when

    with reported_errors(json):
        out = CommandOutput(json)
        folder = _folder(_spec(overrides or ()))
        view = _view(folder)
        for problem in view.problems:
            out.note(f"warning: {problem}")
        if not view.suspects:
            out.line(
                f"no node is on the suspect list of cluster {folder.path.name} ({folder.root})"
            )
        for one in view.suspects:
            out.line(f"{one.node}: {one.reason}")
            for report in one.reports:
                by = f"run {report.run}, job {report.job or '?'}" if report.run else "a check"
                seen = f"{count(report.count, 'event')} {report.event}" if report.event else ""
                evidence = ", ".join(word for word in (by, seen, report.user) if word)
                out.line(f"    {when(report.time)}  {evidence}")
            out.line(f"    {one.verdict}; left out until {when(one.expires)}")
            out.dim(f"    {one.admin}")
        out.document(
            {
                "folder": str(folder.root),
                "cluster": folder.path.name,
                "suspects": [_record(one) for one in view.suspects],
                "problems": list(view.problems),
            }
        )


@app.command("clear")
def clear(words: NamesAndOverrides, why: WhyOption = "", json: JsonOption = False) -> None:
    """Let all runs use nodes again, whatever was recorded about them before.

    Example: hpckit nodes clear n07 n12 --why "memory replaced"

    It also counts for a run's own memory of a bad node. A problem that is seen afterwards puts the
    node on the list again.

    Keys of --json: cleared (names), were_suspects (names).
    """
    from hpckit.cli.common.command_output import CommandOutput

    with reported_errors(json):
        out, (names, overrides) = CommandOutput(json), _split(words)
        spec = _spec(overrides)
        folder = _folder(spec)
        suspects = {one.node for one in _view(folder).suspects}
        for name in names:
            _write(folder, name, "clear", why or "cleared", _CLEAR_HOURS)
            note = "" if name in suspects else " (it was on no list)"
            out.line(f"{name} may be used again{note}")
        were = [name for name in names if name in suspects]
        out.document({"cleared": names, "were_suspects": were})


@app.command("check")
def check(
    words: NamesAndOverrides,
    may_clear: Annotated[
        bool, typer.Option("--clear", help="Clear a node in which no problem is found.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run the health checks of a run on nodes again, by a short job on each, and record the result.

    Example: hpckit nodes check n07 cluster=mine --clear

    The checks are those of health=..., with the requests of a run of these overrides. A node with a
    problem stays on the list, or is put on it, and exit status 1 says so. One without stays, too,
    unless --clear is given: a node that was lost may pass all checks.

    Keys of --json: nodes (node, verdict: healthy or unhealthy, problems, is_cleared, admin).
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.doctor.node_probe import ProbeError, check_node
    from hpckit.slurm.node_exclusion import drain_line

    with reported_errors(json):
        out, (names, overrides) = CommandOutput(json), _split(words)
        spec = _spec(overrides)
        folder = _folder(spec)
        found: list[dict[str, Any]] = []
        for name in names:
            try:
                problems = check_node(spec, name)
            except ProbeError as error:
                raise CommandError(f"{name} was not checked: {error}") from None
            reason = "; ".join(problems) or "no problem found"
            is_cleared = may_clear and not problems
            hours = _hours(spec)
            _write(folder, name, "recheck", reason, hours, is_unhealthy=bool(problems))
            if is_cleared:
                _write(folder, name, "clear", "checked: no problem found", _CLEAR_HOURS)
            admin = drain_line(name, reason) if problems else None
            found.append(
                {
                    "node": name,
                    "verdict": "unhealthy" if problems else "healthy",
                    "problems": problems,
                    "is_cleared": is_cleared,
                    "admin": admin,
                }
            )
            out.line(f"{name}: {reason}" + (", and it may be used again" if is_cleared else ""))
            if admin is not None:
                out.dim(f"    {admin}")
            elif not is_cleared:
                out.dim(f"    hpckit nodes clear {name}")
        out.document({"nodes": found})
    if any(one["problems"] for one in found):
        raise typer.Exit(FOUND)


def _record(one: SuspectNode) -> dict[str, Any]:
    return {
        "node": one.node,
        "reason": one.reason,
        "time": one.time,
        "expires": one.expires,
        "is_unhealthy": one.is_unhealthy,
        "verdict": one.verdict,
        "admin": one.admin,
        "reports": [asdict(report) for report in one.reports],
    }


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of nodes, and the overrides."""
    from hpckit.suspects.suspect_record import is_node_name

    names = [word for word in words if "=" not in word]
    for name in names:
        if not is_node_name(name):
            raise CommandError(f"{name!r} cannot be the name of a node; write each name in full")
    if not names:
        raise CommandError("name at least one node; hpckit nodes lists the suspects")
    return list(dict.fromkeys(names)), [word for word in words if "=" in word]


def _spec(overrides: Sequence[str]) -> RunSpec:
    from hpckit.slurm.sbatch_variables import with_sbatch_variables
    from hpckit.submit.compose import compose_spec
    from hpckit.submit.preflight.checks import with_absolute_paths

    is_chosen = any(word.startswith("cluster=") for word in overrides)
    words = [*overrides] if is_chosen else ["cluster=slurm", *overrides]
    spec = with_absolute_paths(compose_spec(words), Path.cwd())
    return with_sbatch_variables(spec, os.environ)[0]


def _folder(spec: RunSpec) -> SuspectFolder:
    from hpckit.suspects.suspect_folder import SuspectListError, open_folder

    slurm = spec.cluster.slurm
    if slurm is None or slurm.suspects is None:
        raise CommandError("cluster.slurm.suspects is null: runs of this config have no list")
    try:
        return open_folder(slurm.suspects)
    except SuspectListError as error:
        raise CommandError(str(error)) from None


def _view(folder: SuspectFolder) -> SuspectView:
    from hpckit.suspects.suspect_folder import SuspectListError

    try:
        return folder.view()
    except SuspectListError as error:
        raise CommandError(str(error)) from None


def _hours(spec: RunSpec) -> float:
    assert spec.cluster.slurm is not None
    assert spec.cluster.slurm.suspects is not None
    return spec.cluster.slurm.suspects.hours


def _write(
    folder: SuspectFolder,
    node: str,
    kind: RecordKind,
    reason: str,
    hours: float,
    *,
    is_unhealthy: bool = False,
) -> None:
    import getpass

    from hpckit.suspects.suspect_folder import SuspectListError
    from hpckit.suspects.suspect_record import SuspectRecord

    now = time.time()
    record = SuspectRecord(
        node=node,
        kind=kind,
        time=now,
        expires=now + hours * 3600,
        reason=reason,
        is_unhealthy=is_unhealthy,
        user=getpass.getuser(),
    )
    try:
        folder.write(record)
    except SuspectListError as error:
        raise CommandError(str(error)) from None
