"""The energy of a run's jobs, by Slurm's accounting."""

from __future__ import annotations

import subprocess
from collections.abc import Collection

from hpckit.slurm.slurm_query import query

_TIMEOUT_S = 20.0
_NOTHING_BEYOND = 2**63
"""Slurm prints its NO_VAL64 where a node could not be measured."""


def consumed_joules(jobs: Collection[str]) -> dict[str, float]:
    """Return the energy in joules that jobs have consumed, of those for which it is known: a site
    has to measure it (AcctGatherEnergyType) and to have accounting.

    Raises:
        OSError, subprocess.SubprocessError: sacct failed, or is not installed.
    """
    if not jobs:
        return {}
    command = ["sacct", "--noheader", "--parsable2", "--allocations"]
    command += ["--format=JobIDRaw,ConsumedEnergyRaw", f"--jobs={','.join(sorted(jobs))}"]
    return parse_energy(query(command, _TIMEOUT_S))


def known_joules(jobs: Collection[str]) -> dict[str, float]:
    """Return the result of `consumed_joules`, or nothing where sacct does not answer."""
    try:
        return consumed_joules(jobs)
    except (OSError, subprocess.SubprocessError):
        return {}


def parse_energy(text: str) -> dict[str, float]:
    """Return joules by job, of sacct's lines `job|joules`; lines without a number are left out.
    Pure."""
    found = {}
    for line in text.splitlines():
        job, _, joules = line.strip().partition("|")
        if joules.isdigit() and 0 < int(joules) < _NOTHING_BEYOND:
            found[job] = float(joules)
    return found
