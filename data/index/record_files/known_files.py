"""The facts of many files beside an index, which are kept in one file, so that one process finds
them and all others read them: they take dozens of reads for each file."""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from data.durable_files import locked, write_atomically
from data.errors import IndexFileError
from data.index import column_container
from data.index.token_files.token_file import TokenFile, examined, probes_of, status_of

FEW_FILES = 16
"""Of as many files, the facts are found again each time."""

Examine: TypeAlias = Callable[[Path], TokenFile]
"""Returns the facts of a file."""

_KIND = "files"
_DTYPE = "uint8"
_Made = TypeVar("_Made")

_log = logging.getLogger(__name__)


class _UnknownFileError(Exception):
    """The facts of a file are not kept."""


def with_known_files(place: Path, count: int, make: Callable[[Examine], _Made]) -> _Made:
    """Return what `make` makes with the facts of the `count` files that the index `place` lists.
    They are kept beside it (`PLACE.index`), if the folder can be written to, and used while a file
    has the size and the time that it had. Raises what `make` raises."""
    if count <= FEW_FILES:
        return make(_examined)
    kept = place.with_name(f"{place.name}.index")
    try:
        return make(_Known(place.parent, _load(kept)))
    except _UnknownFileError:
        pass
    with ExitStack() as stack:
        try:  # another process may be finding them
            stack.enter_context(locked(kept.with_name(f".{kept.name}.lock")))
            may_keep = True
        except OSError as error:
            _log.info("%s: the facts of its files cannot be kept (%s)", place, error.strerror)
            may_keep = False
        known = _Known(place.parent, _load(kept), finds=True)
        made = make(known)
        if may_keep:
            _keep(kept, known.facts)
    return made


class _Known:
    """Looks up the facts of the files of a folder.

    Args:
        finds: facts that are not known are found; otherwise `_UnknownFileError` is raised.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any], *, finds: bool = False) -> None:
        self._folder, self._known, self._finds = folder, facts, finds
        self.facts: dict[str, list[Any]] = {}

    def __call__(self, path: Path) -> TokenFile:
        if not path.is_relative_to(self._folder):  # unpacked into a cache
            return _examined(path)
        name = str(path.relative_to(self._folder))
        size, tag = status_of(str(path))
        match self._known.get(name):
            case [int(was), str(was_tag), str(content), int(highest)] if (was, was_tag) == (
                size,
                tag,
            ):
                probes = probes_of(size, _DTYPE)
                file = TokenFile(str(path), size, tag, _DTYPE, probes, content, highest)
            case _ if self._finds:
                file = _examined(path)
            case _:
                raise _UnknownFileError
        self.facts[name] = [file.bytes, file.tag, file.content, file.highest]
        return file


def _examined(path: Path) -> TokenFile:
    return examined(path, _DTYPE)


def _keep(kept: Path, facts: Mapping[str, Any]) -> None:
    try:
        content = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        write_atomically(kept, column_container.pack(_KIND, {}, {"facts": content}))
    except OSError as error:
        _log.info("%s: the facts of its files cannot be kept (%s)", kept, error.strerror)


def _load(kept: Path) -> Mapping[str, Any]:
    if not kept.is_file():
        return {}
    try:
        files = json.loads(column_container.load(kept, _KIND).columns["facts"].tobytes())
    except (OSError, IndexFileError, KeyError, ValueError, RecursionError) as error:
        _log.warning("the facts of files are found again, as they cannot be read: %s", error)
        return {}
    return files if isinstance(files, dict) else {}
