"""What `scontrol` says, and what it is asked to do."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence


def show_job(job: str, within_s: float) -> str:
    """What it says of a job, with times in seconds since the epoch.

    Raises:
        OSError, subprocess.SubprocessError: it says nothing, or not in time.
    """
    return subprocess.run(
        ["scontrol", "--oneliner", "show", "job", job],
        env=os.environ | {"SLURM_TIME_FORMAT": "%s"},  # in no time zone
        capture_output=True,
        text=True,
        check=True,
        timeout=within_s,
    ).stdout


def run_scontrol(words: Sequence[str], within_s: float) -> str | None:
    """Why `scontrol` has not done what these words ask for; None: it has.

    Args:
        within_s: the longest that it may take.
    """
    try:
        done = subprocess.run(
            ["scontrol", *words], capture_output=True, text=True, timeout=within_s, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return (done.stderr.strip() or "scontrol failed") if done.returncode else None


def field(text: str, key: str) -> str | None:
    """The value of `key`; None if it is not told."""
    match = re.search(rf"(?:^| ){key}=(\S+)", text)
    return match[1] if match else None
