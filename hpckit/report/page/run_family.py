"""The runs that a run was forked from, and the forks of all of them, as a page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpckit.events.event_validation import read_valid_events
from hpckit.events.schema import Event
from hpckit.report.cost.lineage import Lineage, read_lineage, real_path
from hpckit.report.history import build_history
from hpckit.report.overview import Overview, Queue, read_overview
from hpckit.report.page.curve_values import Curve, curve_of, values_of
from hpckit.rundir.directory import RunDir
from hpckit.rundir.fork_record import ForkRecord

MOST = 12
"""Number of related runs whose records are read; the first ones."""


@dataclass(frozen=True)
class RelatedRun:
    """A run of the family."""

    overview: Overview
    is_this: bool
    """Whether it is the run that the page is about."""


@dataclass(frozen=True)
class RunFamily:
    """The family of a run; empty if it was not forked and has no forks."""

    runs: tuple[RelatedRun, ...] = ()
    """A parent comes before its forks."""
    others: int = 0
    """Number of runs whose records were not read, or may not be."""
    missing: tuple[str, ...] = ()
    """Run directories of parents that no longer exist, or may not be read."""
    inherited: Curve | None = None
    """The losses of its ancestors, up to the step from which it continues them."""


def read_family(run: RunDir, slurm: Queue) -> RunFamily:
    """Read the family of a run. Forks are looked for beside it and beside its ancestors.

    Raises:
        OSError: a run directory cannot be read.
    """
    own = real_path(run.path)
    lineage = read_lineage([run], own.parent)
    if not lineage.forks:
        return RunFamily(missing=lineage.missing)
    line = _ancestors(own, lineage)
    first = [*dict.fromkeys([*line, own, *(one.path for one in lineage.runs)])][:MOST]
    events: dict[Path, Sequence[Event]] = {}
    shown: list[RelatedRun] = []
    for one in lineage.runs:
        if one.path in first:
            with suppress(PermissionError):  # of files of another user
                found = read_valid_events(one).events
                shown.append(RelatedRun(read_overview(one, slurm, found), one.path == own))
                events[one.path] = found
    known = [(events[path], fork) for path, fork in line.items() if path in events]
    return RunFamily(
        runs=tuple(shown),
        others=len(lineage.runs) - len(shown),
        missing=lineage.missing,
        inherited=inherited_losses(known),
    )


def family_record(it: RunFamily) -> list[dict[str, Any]]:
    """Return the runs of the family as JSON values; of a fork, with the step that it began at."""
    return [
        {
            "run": one.overview.run.name,
            "path": str(one.overview.run.path),
            "forked_from": one.overview.fork.run if one.overview.fork else None,
            "fork_step": one.overview.fork.step if one.overview.fork else None,
            "state": one.overview.word,
            "step": one.overview.progress.step,
        }
        for one in it.runs
    ]


def inherited_losses(line: Sequence[tuple[Sequence[Event], ForkRecord]]) -> Curve | None:
    """Return the losses of the ancestors of a run, each up to the step at which it was forked.
    None: there are no losses. Pure.

    Args:
        line: the events of each ancestor, the parent first, and the fork that begins with it.
    """
    found: dict[int, float] = {}
    for events, fork in reversed(line):
        kept = sorted(build_history(events).kept.items())
        found |= {step: value for step, value in values_of(kept, "loss") if step <= fork.step}
    return curve_of("loss", sorted(found.items())) if found else None


def _ancestors(own: Path, lineage: Lineage) -> dict[Path, ForkRecord]:
    """Return the ancestors that still exist, the parent first, each with the fork that begins with
    it."""
    there, found, path = {one.path for one in lineage.runs}, dict[Path, ForkRecord](), own
    while (fork := lineage.forks.get(path)) is not None:
        path = real_path(Path(fork.path))
        if path not in there or path in found:
            break
        found[path] = fork
    return found
