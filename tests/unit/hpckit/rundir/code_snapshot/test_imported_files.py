"""What an entry point imports from its project."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from hpckit.rundir.code_snapshot.imported_files import imported_files


def project(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    "text",
    [
        "import p.x",
        "import os, p.x as y  # why",
        "import os, \\\n    p.x",
        "from p import x",
        "from p import (\n    other,  # a comment, with a comma\n    x as y,\n)",
        "from p.x import *",
        "from p.x import name",
        "if True:\n    from p import x",
        "def f():\n\timport p.x",
        "from p import other, \\\n    x",
    ],
)
def test_each_form_of_an_import_is_seen(tmp_path: Path, text: str) -> None:
    root = project(tmp_path, {"t.py": text, "p/__init__.py": "", "p/x.py": "", "p/z.py": ""})
    assert imported_files(root, "t") == {"t.py", "p/__init__.py", "p/x.py"}


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("from . import b", "p/q/b.py"),
        ("from .b import x", "p/q/b.py"),
        ("from .. import c", "p/c.py"),
        ("from ..r.d import y", "p/r/d.py"),
    ],
)
def test_relative_imports_start_from_their_package(tmp_path: Path, text: str, file: str) -> None:
    files = {"p/q/a.py": text, "p/q/b.py": "", "p/c.py": "", "p/r/d.py": "", "p/__init__.py": ""}
    found = imported_files(project(tmp_path, files), "p.q.a")
    assert found == {"p/q/a.py", "p/__init__.py", file}


def test_imports_are_followed_in_circles_and_out_of_the_project(tmp_path: Path) -> None:
    compiled = f"ext{EXTENSION_SUFFIXES[0]}"
    files = {"a.py": "import b, torch, ext", "b.py": "import a\nfrom ... import c", compiled: ""}
    assert imported_files(project(tmp_path, files), "a") == {"a.py", "b.py", compiled}


def test_foreign_packages_are_not_followed(tmp_path: Path) -> None:
    root = project(tmp_path, {"a.py": "import data.x", "data/x.py": ""})
    assert imported_files(root, "a", foreign=("data",)) == {"a.py"}
    assert imported_files(root, "none.such") == set()
