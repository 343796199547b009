"""Finds the training function `module:function` and its parameters without importing it, which
could take minutes."""

from __future__ import annotations

import ast
import difflib
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hpckit.earlier_names import current

SignatureProblems = Callable[[str, Path, "list[ast.stmt]"], list[str]]


def entry_problems(
    entry: str, root: Path, key: str = "entry", signature: SignatureProblems | None = None
) -> list[str]:
    """Returns the reasons why a worker that runs the project in `root` cannot call `entry`; empty
    if it can.

    Args:
        key: the key of the config that names the function.
        signature: returns what is wrong with the parameters of the function, from `entry`, its
            source and the statements of that; None: it has to take the config alone.
    """
    module, _, function = entry.partition(":")
    source = find_source(current(module), [str(root), *sys.path])
    if source is None and module.endswith(".py"):
        return [
            f"{key}: write the module without .py: {key}={module.removesuffix('.py')}:{function}"
        ]
    if source is None:
        return [
            f"{key}: there is no module {module} in {root} or installed; MODULE:FUNCTION is a "
            "file MODULE.py there, a folder's with a dot, as mycode.train:main"
        ]
    try:
        with tokenize.open(source) as file:
            body = ast.parse(file.read(), str(source)).body
    except (SyntaxError, ValueError) as error:
        return [f"{key}: {source} is no Python source: {error}"]
    names = dict(_bound(body))
    if names.get(function, "*" in names):
        return (signature or _signature_problems)(entry, source, body)
    if function in names:
        return [f"{key}: {function} in {source} is a value, and no function that takes the config"]
    near = difflib.get_close_matches(function, names, n=1)
    hint = f"; did you mean {module}:{near[0]}?" if near else ""
    return [f"{key}: {source} defines no function {function}{hint}"]


def _signature_problems(entry: str, source: Path, body: list[ast.stmt]) -> list[str]:
    """Returns the reason why the function cannot be called with the config alone, if its definition
    is here and each one of that name has such a reason. A decorator may change the parameters, so
    nothing is known of a decorated function."""
    module, _, name = entry.partition(":")
    found = [_misfit(node) for node in definitions_of(body, name)]
    if not found or None in found:
        return []
    line, why = next(one for one in reversed(found) if one is not None)
    return [
        f"entry: {module}:{name} ({source}, line {line}) {why}; hpckit calls it with one argument, "
        f"the config: write def {name}(cfg)"
    ]


def definitions_of(body: Iterable[ast.stmt], name: str) -> Iterator[ast.stmt]:
    """Yields every statement of a module that binds `name`."""
    for node in body:
        if any(bound == name for bound, _ in _bound([node])):
            if isinstance(node, ast.If | ast.With | ast.Try):
                inner = [one for one in ast.walk(node) if isinstance(one, ast.stmt)]
                yield from (one for one in inner[1:] if any(n == name for n, _ in _bound([one])))
            else:
                yield node


def _misfit(node: ast.stmt) -> tuple[int, str] | None:
    """Returns the line of a definition, and why what it defines cannot be called with one argument;
    None if it can, or it is not known."""
    match node:
        case ast.AsyncFunctionDef(decorator_list=[]):
            return node.lineno, "is an async function, which nothing awaits"
        case ast.FunctionDef(decorator_list=[], args=given):
            why = _unlike_one(given)
        case ast.Assign(value=ast.Lambda(args=given)):
            why = _unlike_one(given)
        case _:
            return None
    return None if why is None else (node.lineno, why)


def _unlike_one(given: ast.arguments) -> str | None:
    """Returns how parameters differ from one positional argument; None if they accept it."""
    positional = [one.arg for one in (*given.posonlyargs, *given.args)]
    required = positional[: len(positional) - len(given.defaults)]
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    keywords = [one.arg for one, default in pairs if default is None]
    if not positional and given.vararg is None:
        return "takes no positional argument" if keywords else "takes no argument"
    if len(required) > 1:
        return f"takes {len(required)} arguments without a default ({', '.join(required)})"
    if keywords:
        return f"needs the keyword arguments {', '.join(keywords)}"
    return None


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
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
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
