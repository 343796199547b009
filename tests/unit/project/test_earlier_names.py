"""Modules by their names of earlier releases: in users' code, on command lines and in specs."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from hpckit import earlier_names
from hpckit.submit.preflight.entry_point import entry_problems


def test_every_module_of_now_is_there() -> None:
    for now in earlier_names._NOW.values():
        import_module(now)


@pytest.mark.parametrize("name", sorted(earlier_names._MODULES))
def test_an_earlier_name_is_the_module_of_now_and_is_told_once(name: str) -> None:
    sys.modules.pop(name, None)
    with pytest.warns(FutureWarning, match=f"{name} is {earlier_names.current(name)} now"):
        module = import_module(name)
    assert module is import_module(earlier_names.current(name))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import_module(name)


@pytest.mark.parametrize("name", sorted(earlier_names._ENTRY_POINTS))
def test_an_entry_point_keeps_its_name(name: str, tmp_path: Path) -> None:
    sys.modules.pop(name, None)
    assert entry_problems(f"{name}:main", tmp_path) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert import_module(name).main is import_module(earlier_names.current(name)).main


def test_python_runs_a_module_by_its_earlier_name() -> None:
    words = [sys.executable, "-m", "hpckit.launch.job", "no_such_key=1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "hpckit.launch.job is hpckit.supervisor.user_job now" in done.stderr
    assert "no_such_key" in done.stderr


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"hpckit\.launch\.nothing"):
        import_module("hpckit.launch.nothing")
