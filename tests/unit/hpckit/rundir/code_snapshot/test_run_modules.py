"""What a run imports of its project, by its entry point or by the command line of its program."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.rundir.code_snapshot.imported_files import run_files
from tests.unit.hpckit.rundir.code_snapshot.test_imported_files import project
from tests.unit.hpckit.specs_and_processes import make_spec

FILES = {
    "lib/a.py": "",
    "scripts/train.py": "import utils\nfrom lib import a\n",
    "scripts/utils.py": "",
    "pkg/__init__.py": "",
    "pkg/__main__.py": "from . import b\n",
    "pkg/b.py": "",
    "top.py": "import lib.a",
}
SCRIPT = {"scripts/train.py", "scripts/utils.py", "lib/a.py"}


def found(root: Path, *words: str, cwd: Path | None = None) -> set[str]:
    command = {"command.arguments": list(words), "command.cwd": str(cwd or root), "entry": None}
    return run_files(make_spec({**command}, command="program"), project(root, FILES), None)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("python", "scripts/train.py", "--lr", "0.1"), SCRIPT),
        (("python", "-u", "./top.py"), {"top.py", "lib/a.py"}),
        (("python", "-m", "pkg"), {"pkg/__init__.py", "pkg/__main__.py", "pkg/b.py"}),
        (("bash", "run.sh"), set()),
        (("python", "/elsewhere/x.py"), set()),
    ],
)
def test_the_script_of_a_program_is_followed(
    tmp_path: Path, words: tuple[str, ...], expected: set[str]
) -> None:
    assert found(tmp_path, *words) == expected


def test_a_script_is_relative_to_where_the_program_runs(tmp_path: Path) -> None:
    assert found(tmp_path, "python", "train.py", cwd=tmp_path / "scripts") == SCRIPT


def test_an_entry_point_is_followed(tmp_path: Path) -> None:
    assert run_files(make_spec(), project(tmp_path, FILES), "top") == {"top.py", "lib/a.py"}
