"""Finds the training function `module:function` without importing it, which could take minutes."""

from __future__ import annotations

import ast
import difflib
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpckit.earlier_names import current


def entry_problems(entry: str, root: Path) -> list[str]:
    """Returns the reasons why a worker that runs the project in `root` cannot call `entry`; empty
    if it can."""
    module, _, function = entry.partition(":")
    source = find_source(current(module), [str(root), *sys.path])
    if source is None:
        return [
            f"entry: there is no module {module} in {root} or installed; MODULE:FUNCTION is a "
            "file MODULE.py there, a folder's with a dot, as mycode.train:main"
        ]
    try:
        with tokenize.open(source) as file:
            names = dict(_bound(ast.parse(file.read(), str(source)).body))
    except (SyntaxError, ValueError) as error:
        return [f"entry: {source} is no Python source: {error}"]
    if names.get(function, "*" in names):
        return []
    if function in names:
        return [f"entry: {function} in {source} is a value, and no function that takes the config"]
    near = difflib.get_close_matches(function, names, n=1)
    hint = f"; did you mean {module}:{near[0]}?" if near else ""
    return [f"entry: {source} defines no function {function}{hint}"]


def find_source(module: str, path: Iterable[str]) -> Path | None:
    """Returns the source file of `module` in the first folder of `path` (as `sys.path`) that has
    it."""
    *folders, name = module.split(".")
    for place in path:
        folder = Path(place, *folders)
        for source in (folder / name / "__init__.py", folder / f"{name}.py"):
            if source.is_file():
                return source
    return None


_VALUES = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set)
"""Syntax nodes of values that are certainly not functions."""


def _bound(body: Iterable[ast.stmt]) -> Iterator[tuple[str, bool]]:
    """Yields the names that the statements of a module bind, and whether each may be a function;
    `*` stands for the names of a star import."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name, True
            case ast.Assign(targets=targets, value=value):
                names = (target.id for target in targets if isinstance(target, ast.Name))
                yield from ((name, not isinstance(value, _VALUES)) for name in names)
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                yield name, not isinstance(value, _VALUES)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname or alias.name, True) for alias in aliases)
            case ast.If() | ast.With():
                yield from _bound([*node.body, *getattr(node, "orelse", [])])
            case ast.Try():
                handled = [inner for handler in node.handlers for inner in handler.body]
                yield from _bound([*node.body, *handled, *node.orelse, *node.finalbody])
            case _:
                pass
