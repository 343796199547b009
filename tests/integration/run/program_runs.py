"""Runs of training scripts, and what they have printed."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from hpckit.rundir.directory import RunDir
from tests.integration.examples.example_programs import ForkedProgram
from tests.integration.run.runs import REPO

SCRIPTS = Path(__file__).parent / "programs"
_LINE = re.compile(r"step (\d+) of \d+: loss (\S+)")


def project_with(folder: Path, script: str) -> Path:
    """A folder with one of the scripts, which is a project of its own."""
    folder.mkdir(parents=True)
    shutil.copy(SCRIPTS / script, folder / "train.py")
    return folder


def launch_line(*words: str) -> list[str]:
    """The command that launches in the working directory."""
    return [sys.executable, str(REPO / "launch.py"), "root=.", "name=t", *words]


def losses_without(script: str, folder: Path, forks: ForkedProgram) -> dict[int, str]:
    """The losses of a script on two ranks without hpckit, to the last bit.

    Args:
        forks: of `plain_script`, whose ranks have the environment that torchrun gives.
    """
    project = project_with(folder, script)
    return losses_in(forks.read(["train.py"], project, ranks=2).output)


def losses_in(text: str) -> dict[int, str]:
    """The newest loss of each step."""
    return {int(step): loss for step, loss in _LINE.findall(text)}


def losses_of(run: RunDir) -> dict[int, str]:
    """The newest loss of each step in the logs of rank 0."""
    logs = sorted(run.logs.glob("g*/n*/rank0.log"))
    return losses_in("".join(log.read_text() for log in logs))
