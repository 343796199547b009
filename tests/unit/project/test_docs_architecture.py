"""The page on the architecture names files, functions and an order of folders that exist.

A path from the top of the repository stands in backticks, alone or as `file.py::function` or
`file.py::Class.method`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.hpckit.specs_and_processes import CHECKOUT
from tests.unit.project.test_structure import MAY_IMPORT, MAY_IMPORT_INSIDE

PAGE = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?|[\w-]+\.(?:py|md|sbatch|sh)")
_QUOTED = re.compile(r"`([^`\n]+)`")
_FIRST_CELL = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def references(text: str) -> Iterator[tuple[str, str]]:
    """The paths in backticks, each with the function or method that follows it, or ""."""
    for quoted in _QUOTED.findall(text):
        path, _, name = quoted.partition("::")
        if name or _PATH.fullmatch(path):
            yield path, name


def definitions(tree: ast.Module) -> set[str]:
    """Functions and classes of a module, and methods as Class.method."""
    found = set[str]()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (m for m in node.body if isinstance(m, ast.FunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


@cache
def definitions_of(path: Path) -> set[str]:
    return definitions(ast.parse(path.read_text(encoding="utf-8")))


REFERENCES = sorted({*references(PAGE)})


def test_the_page_names_many_places() -> None:
    assert sum(bool(name) for _, name in REFERENCES) > 80


@pytest.mark.parametrize("path", sorted({path for path, _ in REFERENCES}))
def test_a_path_exists(path: str) -> None:
    assert (CHECKOUT / path).exists()


@pytest.mark.parametrize(("path", "name"), [one for one in REFERENCES if one[1]])
def test_a_function_is_defined_in_the_file_that_it_follows(path: str, name: str) -> None:
    assert name in definitions_of(CHECKOUT / path)


def test_a_folder_imports_only_from_folders_below_it() -> None:
    rows = [cell for cell in _FIRST_CELL.findall(PAGE) if _PATH.fullmatch(cell)]
    places = {cell.removesuffix(".py").replace("/", "."): n for n, cell in enumerate(rows)}
    allowed = {**MAY_IMPORT, **MAY_IMPORT_INSIDE}
    folders = {name for name in allowed if (CHECKOUT / name.replace(".", "/")).is_dir()}
    assert folders - {"hpckit", "checkpointing", "data"} <= places.keys()
    upwards = [
        f"{name} -> {other}"
        for name, others in allowed.items()
        for other in others
        if name in places and other in places and name != other and places[other] <= places[name]
    ]
    assert upwards == []


def test_references_are_found_in_text() -> None:
    text = "`a/b.py::C.m` then `a/b/`, `launch.py`, `worker_lost`, `hpckit why` and `c.py::f`"
    assert list(references(text)) == [
        ("a/b.py", "C.m"),
        ("a/b/", ""),
        ("launch.py", ""),
        ("c.py", "f"),
    ]


def test_methods_are_found_by_their_classes() -> None:
    tree = ast.parse("def f(): ...\nclass C:\n    def m(self): ...\n    x = 1\n")
    assert definitions(tree) == {"f", "C", "C.m"}
