"""A program that cannot run is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.config.spec import CommandSpec
from hpckit.submit.program.program_check import command_problems


def problems(cwd: Path, *arguments: str, is_installed: bool = True) -> list[str]:
    command = CommandSpec(arguments=arguments, cwd=None, stop_signal="SIGTERM", step_pattern=None)
    return command_problems(command, cwd, is_installed=is_installed)


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("import torch\n")
    (tmp_path / "bad.py").write_text("def f(:\n    pass\n")
    (tmp_path / "utf.py").write_bytes(b"# coding: nosuch\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")


@pytest.mark.parametrize(
    "line",
    [
        *("python good.py --x", "python -u good.py", "sh run.sh", "env"),
        *("python -m good", "python -m torch.nosuch", "python -m sys", "python -m timeit"),
    ],
)
def test_these_can_run(tmp_path: Path, line: str) -> None:
    assert problems(tmp_path, *line.split()) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("python nosuch.py", "there is no script {0}/nosuch.py"),
        ("python bad.py", "{0}/bad.py is not valid Python, line 1: "),
        ("python utf.py", "{0}/utf.py is not valid Python, its encoding: "),
        ("python -m no.such", "there is no module no in {0}, nor among the packages of "),
        ("./run.sh", "{0}/run.sh is not executable; run chmod +x on it, or name its interpreter"),
        ("./nosuch", "there is no program {0}/nosuch"),
        ("nosuch-program", "there is no program nosuch-program on the PATH; give its path"),
        ("pyhton good.py", "there is no program pyhton on the PATH; did you mean python?"),
        ("good.py", "there is no program good.py on the PATH; write `-- python good.py`"),
    ],
)
def test_these_cannot(tmp_path: Path, line: str, told: str) -> None:
    (found,) = problems(tmp_path, *line.split())
    assert found.startswith("command.arguments: " + told.format(tmp_path))


def test_words_in_quotes_are_no_program(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "python good.py")
    assert found.endswith("quotes around all of them these are words: `-- python good.py`")


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert problems(tmp_path / "no", "python", "good.py") == [
        f"command.cwd: there is no folder {tmp_path / 'no'}"
    ]


@pytest.mark.parametrize("line", ["python -m no.such", "nosuch-program"])
def test_what_a_container_has_is_not_searched_here(tmp_path: Path, line: str) -> None:
    assert problems(tmp_path, *line.split(), is_installed=False) == []
