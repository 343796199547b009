"""What `scontrol --oneliner show` says."""

from __future__ import annotations

import os
import re
import subprocess


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


def field(text: str, key: str) -> str | None:
    """The value of `key`; None if it is not told."""
    match = re.search(rf"(?:^| ){key}=(\S+)", text)
    return match[1] if match else None
