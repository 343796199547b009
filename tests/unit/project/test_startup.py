"""Code snapshots of runs need not be compiled, and are what is executed all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.changed import CHECKOUT

MODULE = "hpckit/version.py"


def copied(folder: Path) -> Path:
    (folder / MODULE).parent.mkdir(parents=True)
    shutil.copy2(CHECKOUT / MODULE, folder / MODULE)
    return folder


def snapshot(tmp_path: Path) -> Path:
    return copied(tmp_path / "submissions/001/code")


def found_in(folder: Path, what: str) -> str:
    """The value of an expression where `version` has been imported from there."""
    path = f"{folder / 'hpckit'}:{CHECKOUT / 'tests/startup'}"
    done = subprocess.run(
        [sys.executable, "-c", f"import version; print({what})"],
        env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_copy_has_the_byte_code_of_its_source(tmp_path: Path) -> None:
    folder = snapshot(tmp_path)
    assert found_in(folder, "version.__file__") == str(folder / MODULE)
    assert Path(found_in(folder, "version.__cached__")).is_relative_to(CHECKOUT / "hpckit")
    assert found_in(folder, "version.__spec__.loader.get_code('version').co_filename") == str(
        folder / MODULE
    )
    assert not list(folder.rglob("__pycache__"))


def test_a_copy_that_differs_is_compiled(tmp_path: Path) -> None:
    folder = snapshot(tmp_path)
    with (folder / MODULE).open("a") as file:
        file.write("OTHER = 'other'\n")
    assert found_in(folder, "version.OTHER") == "other"
    assert Path(found_in(folder, "version.__cached__")).is_relative_to(folder)


def test_other_files_have_byte_code_of_their_own(tmp_path: Path) -> None:
    folder = copied(tmp_path / "code")
    assert Path(found_in(folder, "version.__cached__")).is_relative_to(folder)
