"""Modules of a program that have the names of hpckit's packages, and hpckit's own, side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.hpckit.specs_and_processes import CHECKOUT

IN_WORKER = """
import sys
import checkpointing.errors, data.errors
from hpckit.ipc.own_packages import own_packages, program_packages

ours = data
folder = sys.argv[1]
sys.path.insert(0, folder)
with program_packages([folder]):
    import data.words
    assert data.words.__file__.startswith(folder), data.words
    assert sys.modules["checkpointing"].__file__.startswith(sys.argv[2])
    with own_packages():
        from data.errors import DataError
        import checkpointing.events
        assert sys.modules["data"] is ours
    import data as again
    assert again.words is data.words
assert sys.modules["data"] is ours
from data.errors import DataError as same
assert same is DataError
"""
IN_CHILD = """
import sys
folder = sys.argv[1]
sys.path.insert(0, folder)
import data.words
from hpckit.ipc.own_packages import own_packages
with own_packages():
    from data.errors import DataError
    from hpckit.ipc.program_session import ProgramSession
import data.words
assert data.words.__file__.startswith(folder), data.words
"""


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (IN_WORKER, ("__init__.py", "words.py")),
        (IN_WORKER, ("words.py",)),
        (IN_CHILD, ("__init__.py", "words.py")),
    ],
    ids=["in the worker", "a folder without __init__.py", "in a child"],
)
def test_each_import_finds_its_own(tmp_path: Path, code: str, names: tuple[str, ...]) -> None:
    (tmp_path / "data").mkdir()
    for name in names:
        (tmp_path / "data" / name).write_text("")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(CHECKOUT)],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT), "PYTHONSAFEPATH": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
