"""What a dry run says of when the job would start."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.slurm.job_placement import start_time

STARTS = "Job 9 to start at 2026-01-02T03:04:05 using 2 processors on nodes n[1-2] in partition low"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (f"cat >&2; echo 'sbatch: {STARTS}' >&2", "2026-01-02T03:04:05, by Slurm's present"),
        ("echo 'allocation failure: no such partition' >&2; exit 1", "unknown: allocation fail"),
        ("exit 0", "unknown: sbatch --test-only printed nothing"),
        (None, "unknown: sbatch is not installed on this machine"),
    ],
)
def test_it_is_told_or_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    if script is not None:
        (tmp_path / "sbatch").write_text(
            f'#!/bin/sh\nPATH=/usr/bin:/bin\n[ "$*" = --test-only ] || exit 9\n{script}\n'
        )
        (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert start_time("#!/bin/sh\n").startswith(said)
