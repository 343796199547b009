"""The interpreter of the nodes, where this machine sees it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpckit.submit.preflight.remote_python import PythonCheck, check_python
from tests.unit.hpckit.specs_and_processes import make_spec


def check(python: str | None, run: Path) -> PythonCheck:
    return check_python(make_spec({"cluster.slurm.python": python}, "slurm"), run)


def test_an_interpreter_that_is_here_is_no_problem(tmp_path: Path) -> None:
    assert check(sys.executable, tmp_path) == PythonCheck()
    assert check(None, tmp_path) == PythonCheck()
    assert check_python(make_spec(), tmp_path) == PythonCheck(), "no Slurm, no other interpreter"


def test_a_file_that_is_not_executable_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "python").touch()
    (line,) = check(str(tmp_path / "python"), tmp_path).problems
    assert line.startswith(f"cluster.slurm.python: {tmp_path}/python is not executable; ")


def test_a_folder_is_a_problem(tmp_path: Path) -> None:
    (line,) = check(str(tmp_path), tmp_path).problems
    assert line.endswith(f"; name the interpreter in it, as {tmp_path}/bin/python")


def test_one_that_is_missing_from_a_folder_that_all_nodes_share_is_a_problem(
    tmp_path: Path,
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3.11").touch()
    (line,) = check(f"{tmp_path}/bin/pyhton", tmp_path / "runs" / "run").problems
    assert line == (
        f"cluster.slurm.python: there is no {tmp_path}/bin/pyhton; {tmp_path}/bin has python3.11"
    )


@pytest.mark.parametrize("name", ["/nowhere/on/this/machine/python", "python3"])
def test_one_that_this_machine_cannot_see_is_said_to_be_unchecked(
    name: str, tmp_path: Path
) -> None:
    found = check(name, tmp_path)
    assert found.problems == []
    (line,) = found.notes
    assert line.startswith(f"cluster.slurm.python: {name} is ")
    assert line.endswith("cannot be checked here; without it on a node, its job fails")


def test_one_that_is_missing_from_a_disk_of_this_machine_alone_is_unchecked(
    tmp_path: Path,
) -> None:
    assert Path("/dev/shm").stat().st_dev != tmp_path.stat().st_dev
    assert len(check("/dev/shm/python-that-is-not-here", tmp_path).notes) == 1
