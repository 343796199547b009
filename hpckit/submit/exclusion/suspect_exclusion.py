"""Decides which suspects a new job does without: never so many that it could not be placed."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpckit.config.rules.violations import fewest_nodes
from hpckit.config.spec import RunSpec
from hpckit.slurm.allocation import hostnames
from hpckit.slurm.job_placement import ask_placement
from hpckit.slurm.node_exclusion import PartitionNodes, choose_exclusions
from hpckit.submit.batch_script import passed_variables
from hpckit.submit.exclusion.partition_nodes import partition_nodes
from hpckit.suspects.suspect_folder import read_view
from hpckit.suspects.suspect_record import SuspectNode, within_share

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class SuspectExclusion:
    """The suspects that a job does without."""

    hosts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was decided about the suspects, and why, a line each."""


def exclude_suspects(
    spec: RunSpec, script_without: Callable[[tuple[str, ...]], str]
) -> SuspectExclusion:
    """Returns the suspects that a new job of `spec` does without.

    Args:
        script_without: returns the batch script of a job that excludes these nodes.
    """
    slurm = spec.cluster.slurm
    if slurm is None:
        return SuspectExclusion()
    view = read_view(slurm.suspects)
    problems = tuple(view.problems)
    if not view.suspects:
        return SuspectExclusion((), problems)
    try:
        nodes = partition_nodes(slurm.partition)
        nodes = nodes.without(hostnames(",".join(slurm.exclude)) if slurm.exclude else ())
    except (OSError, subprocess.SubprocessError) as error:
        names = ", ".join(one.node for one in view.suspects)
        what = f"the job may get {names}, which other runs excluded: Slurm does not answer: {error}"
        return SuspectExclusion((), (*problems, what))
    return choose_suspects(
        view.suspects, nodes, fewest_nodes(spec), _asking(spec, script_without), problems
    )


def choose_suspects(
    suspects: Sequence[SuspectNode],
    nodes: PartitionNodes,
    fewest: int,
    can_run: Callable[[Sequence[str]], bool],
    problems: Sequence[str] = (),
) -> SuspectExclusion:
    """Returns the suspects to exclude. Arguments as in `choose_exclusions`."""
    everything = nodes.usable | nodes.away
    here = [one for one in suspects if one.node in everything]
    trusted, surplus = within_share(here, len(everything))
    excluded, spared = choose_exclusions(
        [one.excludable for one in trusted], nodes, fewest, can_run
    )
    notes = [*problems]
    by_name = {one.node: one for one in here}
    for host in excluded:
        notes.append(f"{host} is left out: {describe_suspect(by_name[host])}")
    if spared:
        notes.append(f"too few nodes would be left without {', '.join(spared)}: not left out")
    if surplus:
        names = ", ".join(sorted(one.node for one in surplus))
        notes.append(
            f"{names} are suspects, too, but are not left out: so many nodes are hardly bad at "
            "once; see hpckit nodes"
        )
    return SuspectExclusion(tuple(excluded), tuple(notes))


def describe_suspect(one: SuspectNode) -> str:
    """Returns the reason, and who reported it."""
    runs = {record.run.rpartition("/")[2] for record in one.reports if record.run}
    by = f", reported by {', '.join(sorted(runs)[:3])}" if runs else ""
    return f"{one.reason}{by} (hpckit nodes clear {one.node} ends that)"


def _asking(
    spec: RunSpec, script_without: Callable[[tuple[str, ...]], str]
) -> Callable[[Sequence[str]], bool]:
    def can_run(hosts: Sequence[str]) -> bool:
        answer = ask_placement(script_without(tuple(hosts)), (), passed_variables(spec), _TIMEOUT_S)
        if answer.is_possible is not True:
            log.warning("Slurm on a job without %s: %s", ", ".join(hosts), answer.message)
        return answer.is_possible is True

    return can_run
