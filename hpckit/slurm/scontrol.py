"""Calls of `scontrol`, and parsing of its output."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

from hpckit.slurm.environment import environment_for

_AFTER_NAME = re.compile(r" UserId=\S*\(\d+\)")


def show_job(job: str, within_s: float) -> str:
    """Returns the output of `scontrol show job`, with times in seconds since the epoch.

    Raises:
        OSError, subprocess.SubprocessError: the command failed, or not in time.
    """
    return subprocess.run(
        ["scontrol", "--oneliner", "show", "job", job],
        env=environment_for("query", os.environ) | {"SLURM_TIME_FORMAT": "%s"},  # of no time zone
        capture_output=True,
        text=True,
        check=True,
        timeout=within_s,
    ).stdout


def run_scontrol(words: Sequence[str], within_s: float) -> str | None:
    """Runs `scontrol` with these words and returns why it failed, or None.

    Args:
        within_s: time limit of the call.
    """
    try:
        done = subprocess.run(
            ["scontrol", *words],
            env=environment_for("query", os.environ),
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (done.stderr.strip() or "scontrol failed") if done.returncode else None


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
