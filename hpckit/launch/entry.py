"""Finds the training function `module:function` without importing it: that could take minutes."""

from __future__ import annotations

import ast
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path


def entry_problems(entry: str, root: Path) -> list[str]:
    """Why `entry` cannot be called by a worker that runs the project in `root`; empty if it can."""
    module, _, function = entry.partition(":")
    source = find_source(module, [str(root), *sys.path])
    if source is None:
        return [f"entry: there is no module {module} in {root} or installed"]
    try:
        with tokenize.open(source) as file:
            names = set(_bound(ast.parse(file.read(), str(source)).body))
    except (SyntaxError, ValueError) as error:
        return [f"entry: {source} is no Python source: {error}"]
    if function in names or "*" in names:
        return []
    return [f"entry: {source} defines no function {function}"]


def find_source(module: str, path: Iterable[str]) -> Path | None:
    """The source file of `module`: where `path`, as `sys.path` is, has it first."""
    *folders, name = module.split(".")
    for place in path:
        folder = Path(place, *folders)
        for source in (folder / name / "__init__.py", folder / f"{name}.py"):
            if source.is_file():
                return source
    return None


def _bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that the statements of a module bind; `*` for what a star import may bring."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
            case ast.If() | ast.With():
                yield from _bound([*node.body, *getattr(node, "orelse", [])])
            case ast.Try():
                handled = [inner for handler in node.handlers for inner in handler.body]
                yield from _bound([*node.body, *handled, *node.orelse, *node.finalbody])
            case _:
                pass
