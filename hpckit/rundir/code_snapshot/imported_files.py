"""Finds the modules of the project that an entry point imports, by reading their sources.

Nothing is run. An import by a name that is computed is not seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from hpckit.config.spec import RunSpec

# Like the syntax, except that a comment or text may look like an import: then one more file is
# copied. Parsing each source takes fifty times as long.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[ \t]*[\w.]*)[ \t]+import[ \t]*(\([^)]*\)|(?:[^\n\\]|\\.|\\\n)*)"
    r"|import[ \t]+((?:[^\n\\]|\\\n)*))",
    re.MULTILINE,
)
_NAME = re.compile(r"[^\W\d][\w.]*")
_SUFFIXES = (".py", *EXTENSION_SUFFIXES)


def imported_files(root: Path, module: str, foreign: Collection[str] = ()) -> set[str]:
    """Returns the names, relative to `root`, of the project's files that importing `module`
    imports, directly or not.

    Args:
        foreign: top-level packages that are not the project's.
    """
    found: set[str] = set()
    finder = _ModuleFinder(root)
    pending = [module]
    seen = {module}
    while pending:
        name = pending.pop()
        if name.split(".")[0] in foreign:
            continue
        for file in finder.files(name):
            if file in found:
                continue
            found.add(file)
            if file.endswith(".py"):
                package = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                if not file.endswith("/__init__.py"):
                    package = package.rpartition(".")[0]
                new = set(_imports(_read(root / file), package)) - seen
                seen |= new
                pending += new
    return found


class _ModuleFinder:
    """Finds the files of modules, and lists each folder once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listed: dict[str, set[str]] = {}

    def files(self, module: str) -> Iterator[str]:
        """Yields the file of a module, and of each package above it. There need not be any."""
        folder = ""
        for part in module.split("."):
            names = self._names(folder)
            path = f"{folder}/{part}" if folder else part
            for suffix in _SUFFIXES:
                if part + suffix in names:
                    yield path + suffix
            if part not in names:
                return
            if "__init__.py" in self._names(path):
                yield f"{path}/__init__.py"
            folder = path

    def _names(self, folder: str) -> set[str]:
        if folder not in self._listed:
            names: set[str] = set()
            with suppress(OSError):
                names = {path.name for path in (self._root / folder).iterdir()}
            self._listed[folder] = names
        return self._listed[folder]


def _imports(source: str, package: str) -> Iterator[str]:
    """Yields the full names of what a source imports: modules, and names that may be modules.

    Args:
        package: the package of the source, empty at the top level.
    """
    for match in _IMPORT.finditer(source):
        origin, names, modules = match.groups()
        if modules is not None:
            for part in re.sub(r"#.*", "", modules).split(","):
                if name := _NAME.search(part):
                    yield name[0]
            continue
        base = _absolute(origin.replace(" ", "").replace("\t", ""), package)
        if base is None:
            continue
        if base:
            yield base
        for part in re.sub(r"#.*", "", names).strip("()").split(","):
            if name := _NAME.search(part):
                yield f"{base}.{name[0]}" if base else name[0]


def _absolute(origin: str, package: str) -> str | None:
    """Returns the full name of the module after `from`, or None if it is above the top."""
    name = origin.lstrip(".")
    level = len(origin) - len(name)
    if not level:
        return name
    parts = package.split(".") if package else []
    if level - 1 > len(parts):
        return None
    base = parts[: len(parts) - level + 1]
    return ".".join([*base, *([name] if name else [])])


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_bytes().decode("utf-8", "replace")
    return ""


def run_files(
    spec: RunSpec, root: Path, entry: str | None, foreign: Collection[str] = ()
) -> set[str]:
    """Returns the names, relative to the project in `root`, of its files that the run imports, as
    far as sources show.

    Args:
        entry: the module of the entry point, by its present name; None: there is none.
        foreign: top-level packages that are not the project's.
    """
    found = set() if entry is None else imported_files(root, entry, foreign)
    if spec.eval.entry is not None:
        found |= imported_files(root, spec.eval.entry.partition(":")[0], foreign)
    if spec.command is None:
        return found
    arguments = spec.command.arguments
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "-m" and following:
            found |= imported_files(root, following, foreign)
            found |= imported_files(root, f"{following}.__main__", foreign)
        elif word.endswith(".py"):
            found |= _script_files(root, _inside(word, spec.command.cwd, root), foreign)
    return found


def _script_files(root: Path, script: str | None, foreign: Collection[str]) -> set[str]:
    """Returns a script and what it imports, from its own folder or from the project's."""
    if script is None:
        return set()
    folder, _, name = script.removesuffix(".py").rpartition("/")
    found = imported_files(root, script.removesuffix(".py").replace("/", "."), foreign)
    beside = imported_files(root / folder, name, foreign) if folder else set()
    return found | {f"{folder}/{one}" for one in beside}


def _inside(word: str, cwd: str | None, root: Path) -> str | None:
    """Returns a script's path relative to the project, or None if it is elsewhere."""
    path = Path(os.path.normpath(Path(cwd or root, word)))
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else None
