"""Tells hpckit's packages `checkpointing` and `data` from modules of these names that a program of
the user has, as both may be needed in one process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

NAMES = ("checkpointing", "data")
"""hpckit's top-level packages whose names a program may use for its own modules."""
_ROOT = Path(__file__).resolve().parents[2]
_NEED_CHECKPOINTING = "hpckit.integrations."
_ours: dict[str, ModuleType] = {}  # modules of hpckit that are not in sys.modules now
_lock = threading.RLock()


def hidden_names(folders: Iterable[str]) -> dict[str, Path]:
    """Returns those of `NAMES` that are modules, packages or folders with modules in these folders
    and not hpckit's, with their places."""
    found: dict[str, Path] = {}
    for folder in folders:
        for name in NAMES:
            place = _place_in(folder, name)
            if place is not None and not _is_in_own(place, name):
                found.setdefault(name, place)
    return found


def _place_in(folder: str, name: str) -> Path | None:
    spec = PathFinder.find_spec(name, [folder])
    if spec is None:
        return None
    if spec.origin is not None:
        return Path(spec.origin)
    inside = Path(folder, name)
    return inside if any(inside.glob("*.py")) else None


def _is_in_own(place: Path, name: str) -> bool:
    return place.resolve().is_relative_to(_ROOT / name)


@contextmanager
def program_packages(folders: Sequence[str]) -> Iterator[None]:
    """Lets imports find the modules of a program during the block, which are in `folders`, as plain
    Python does. hpckit's modules of the same names go on working where they are in use."""
    hidden = hidden_names(folders)
    if not hidden:
        yield
        return
    guard = _IntegrationGuard(hidden)
    with _lock:
        _ours.update(_taken(hidden))
        for name, place in hidden.items():
            if place.is_dir():  # it has no __init__.py, and a package would be found before it
                namespace = ModuleType(name)
                namespace.__path__ = [str(place)]
                sys.modules[name] = namespace
        sys.meta_path.insert(0, guard)
    try:
        yield
    finally:
        with _lock:
            sys.meta_path.remove(guard)
            _taken(hidden)
            sys.modules.update(_ours)
            _ours.clear()


@contextmanager
def own_packages() -> Iterator[None]:
    """Lets imports find hpckit's packages during the block, whatever the program has imported under
    their names."""
    with _lock:
        loaded = {name: module for name in NAMES if (module := sys.modules.get(name)) is not None}
        hidden = {name for name, module in loaded.items() if not _is_own(module, name)}
        absent = [name for name in NAMES if name not in loaded]
        hidden |= {name for name in absent if name in hidden_names(sys.path[:1]) or name in _ours}
        if not hidden:
            yield
            return
        theirs = _taken(hidden)
        sys.modules.update(_ours)
        sys.path.insert(0, str(_ROOT))
        try:
            yield
        finally:
            sys.path.remove(str(_ROOT))
            _ours.update(_taken(hidden))
            sys.modules.update(theirs)


def _is_own(module: ModuleType, name: str) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and _is_in_own(Path(file), name)


def _taken(names: Iterable[str]) -> dict[str, ModuleType]:
    """Removes the modules and packages of these names, and what is in them, and returns them."""
    tops = set(names)
    found = [name for name in sys.modules if name.partition(".")[0] in tops]
    return {name: sys.modules.pop(name) for name in found}


class _IntegrationGuard:
    """Refuses an import that the program's own `checkpointing` would break."""

    def __init__(self, hidden: Mapping[str, Path]) -> None:
        self._place = hidden.get("checkpointing")

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if self._place is None or not name.startswith(_NEED_CHECKPOINTING):
            return
        raise ImportError(
            f"{name} needs hpckit's package checkpointing, and this program has its own in "
            f"{self._place}; rename that one, or use hpckit.client alone"
        )
