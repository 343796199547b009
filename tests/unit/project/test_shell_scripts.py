"""Scripts for a shell, by the eyes of shellcheck."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
_SHELL = re.compile(rb"#!.*\b(ba|da)?sh\b")
# What hpckit writes, with what a user put into it
_WRITTEN = CHECKOUT / "tests" / "unit" / "hpckit" / "submit" / "golden"


def shell_scripts() -> list[Path]:
    folders = [CHECKOUT / name for name in (".ci", "benchmarks", "checkpointing", "conf", "data")]
    folders += [CHECKOUT / name for name in ("hpckit", "slurm", "tests")]
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in files if _is_shell(path) and not path.is_relative_to(_WRITTEN)]


def _is_shell(path: Path) -> bool:
    with path.open("rb") as file:
        return _SHELL.match(file.readline(100)) is not None


def test_shellcheck_finds_nothing() -> None:
    found = shell_scripts()
    assert {path.name for path in found} >= {"train.sbatch", "interactive.sh", "run"}
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed (as root: make services)")
    done = subprocess.run(
        ["shellcheck", *map(str, found)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
