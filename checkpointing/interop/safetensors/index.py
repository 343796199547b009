"""Finds the safetensors files that belong together, by the index beside them or as a single
file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.canonical_json import JsonReader
from checkpointing.interop.atomic_files import InputFile

SUFFIX = ".safetensors"
_MAX_BYTES = 1 << 30  # bytes of an index; a larger one is refused before anything is read


def find_files(path: Path) -> list[Path]:
    """Returns the files to read.

    Args:
        path: a file, an index, or a folder with an index or one file.

    Raises:
        FileNotFoundError: there are no such files.
        FormatError: it is ambiguous which files are meant.
        DamagedError: the index is damaged.
    """
    index = _index_file(path)
    if index is not None:
        return sorted({index.parent / name for name in _weight_map(index).values()})
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(f"*{SUFFIX}"))
    if not found:
        raise FileNotFoundError(f"{path} has no {SUFFIX} file")
    if len(found) > 1:
        raise FormatError(
            f"{path} has {len(found)} {SUFFIX} files but no index that says which belong together: "
            "give one of them"
        )
    return found


def _index_file(path: Path) -> Path | None:
    """Returns the index that `path` is or contains."""
    if path.is_dir():
        found = sorted(path.glob(f"*{SUFFIX}.index.json"))
        if len(found) > 1:
            raise FormatError(
                f"{path} has several indices: give one of them: {', '.join(map(str, found))}"
            )
        return found[0] if found else None
    return path if path.name.endswith(".json") else None


def _weight_map(index: Path) -> dict[str, str]:
    """Returns the file of each tensor."""
    with InputFile(index) as file:
        if file.size > _MAX_BYTES:
            raise DamagedError(f"{index}: has {file.size} bytes, too many for an index")
        data = bytes(file.read(0, file.size))
    try:
        places = JsonReader(json.loads(data), str(index)).object("weight_map")
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{index}: not JSON ({error})") from error
    for name, file_name in places.items():
        if not isinstance(file_name, str) or not _is_plain(file_name):
            raise DamagedError(
                f"{index}: tensor {name!r} is in {file_name!r}, which is not a {SUFFIX} file "
                "of this folder"
            )
    return places


def _is_plain(name: str) -> bool:
    return Path(name).name == name and name.endswith(SUFFIX) and "\0" not in name


def check_index(path: Path, found: Mapping[Path, Iterable[str]]) -> None:
    """Check that every tensor is in only one file, and in the one that the index names.

    Args:
        path: as given to `find_files`.
        found: names of the tensors in each file.

    Raises:
        DamagedError: a tensor is not.
    """
    places: dict[str, str] = {}
    for file, names in found.items():
        for name in names:
            if name in places:
                raise DamagedError(f"{file} and {places[name]} both have a tensor {name!r}")
            places[name] = file.name
    index = _index_file(path)
    if index is None:
        return
    stated = _weight_map(index)
    if wrong := sorted({n for n, _ in places.items() ^ stated.items()}):
        raise DamagedError(
            f"{index} and the files beside it do not agree on {len(wrong)} tensors, such as "
            f"{wrong[0]!r}: the index names {stated.get(wrong[0])!r}, but it is in "
            f"{places.get(wrong[0])!r}"
        )
