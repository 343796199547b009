"""Calls of `scontrol` and `scancel`, and parsing of their output."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from hpckit.slurm.cluster_config import CONFIG, parse_config
from hpckit.slurm.slurm_query import query, run_query

_AFTER_NAME = re.compile(r" UserId=\S*\(\d+\)")


def show_job(job: str, within_s: float) -> str:
    """Returns the output of `scontrol show job`, with times in seconds since the epoch.

    Raises:
        OSError, subprocess.SubprocessError: the command failed, or not in time.
    """
    command = ["scontrol", "--oneliner", "show", "job", job]
    return query(command, within_s, variables={"SLURM_TIME_FORMAT": "%s"})  # of no time zone


def run_scontrol(words: Sequence[str], within_s: float) -> str | None:
    """Runs `scontrol` with these words and returns why it failed, or None.

    Args:
        within_s: time limit of the call.
    """
    return _problem_of(["scontrol", *words], within_s)


def run_scancel(words: Sequence[str], within_s: float) -> str | None:
    """Runs `scancel` with these words and returns why it failed, or None. That a job has ended
    meanwhile is no failure.

    Args:
        within_s: time limit of the call.
    """
    problem = _problem_of(["scancel", *words], within_s)
    return None if problem is not None and "Invalid job id" in problem else problem


def _problem_of(command: Sequence[str], within_s: float) -> str | None:
    try:
        done = run_query(command, within_s)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (done.stderr.strip() or f"{command[0]} failed") if done.returncode else None


def shows_expedite(text: str) -> bool:
    """Returns whether the output of `scontrol show job` is that of a job that was submitted with
    `--requeue=expedite`. Pure."""
    return field(text, "ExpeditedRequeue") == "Yes"


def cluster_name(within_s: float = 20.0) -> str | None:
    """Returns Slurm's name of the cluster of this machine, or None if it does not tell."""
    try:
        return parse_config(query(CONFIG, within_s)).get("ClusterName")
    except (OSError, subprocess.SubprocessError):
        return None


def field(text: str, key: str) -> str | None:
    """Returns the value of `key`, or None if it is missing. Of a heterogeneous job it is that of
    the first part.

    The name of a job comes before the other fields and may have anything in it, such as another
    key; comments and paths come last.
    """
    named = _AFTER_NAME.search(text)
    parts = [text[named.start() :], text.partition(" JobName=")[0]] if named else [text]
    found = (re.search(rf"(?:^| ){key}=(\S+)", part) for part in parts)
    return next((match[1] for match in found if match), None)
