"""A folder of torch.distributed.checkpoint as a new checkpoint. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from checkpointing.errors import FormatError
from checkpointing.format.elements import element
from checkpointing.format.names import Save
from checkpointing.interop.dcp_metadata import (
    Contents,
    PathKeys,
    Place,
    StoredTensor,
    read_contents,
)
from checkpointing.interop.files import InputFile
from checkpointing.interop.importing import save_pieces, source_of
from checkpointing.interop.lists import record
from checkpointing.interop.naming import full_name
from checkpointing.interop.torch_values import loaded_tensor, loaded_value
from checkpointing.store.store import Store
from checkpointing.store.writer import Piece

Files = Mapping[str, InputFile]


def import_dcp(
    folder: Path,
    store: Store,
    run: str,
    step: int,
    item: str | None,
    on_bytes: Callable[[int], None] | None,
) -> Save:
    """See `checkpointing.interop.dcp.import_dcp`."""
    contents = read_contents(folder)
    paths = full_paths(contents, item)
    names = {name: full_name(path) for name, path in paths.items()}
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(InputFile(folder / name)) for name in _file_names(contents)
        }
        values = {
            names[name]: loaded_value(_read(files, place), f"{folder}: {name!r}")
            for name, place in contents.values.items()
        }
        values |= record(paths.values())
        pieces = (
            piece
            for name, stored in contents.tensors.items()
            for piece in _pieces(files, names[name], stored, f"{folder}: {name!r}")
        )
        source = source_of(folder, "DCP")
        return save_pieces(store, run, step, pieces, values, on_bytes, source)


def full_paths(contents: Contents, item: str | None) -> dict[str, PathKeys]:
    """The keys on the way to each thing here, by DCP's name.

    Raises:
        FormatError: two would be the same.
    """
    paths: dict[str, PathKeys] = {}
    for name in [*contents.tensors, *contents.values]:
        path = contents.paths.get(name, (name,))
        if item is not None and len(path) == 1 and name in contents.tensors:
            path = (item, *path)
        paths[name] = path
    found = {name: full_name(path) for name, path in paths.items()}
    if len(set(found.values())) != len(found):
        twice = sorted(n for n in found if list(found.values()).count(found[n]) > 1)
        raise FormatError(f"these would have the same name: {', '.join(twice)}; give another item")
    return paths


def _file_names(contents: Contents) -> list[str]:
    chunks = [place for stored in contents.tensors.values() for place in stored.chunks.values()]
    return sorted({place.file for place in [*chunks, *contents.values.values()]})


def _pieces(files: Files, name: str, stored: StoredTensor, where: str) -> Iterator[Piece]:
    if 0 in stored.shape:
        empty = np.empty(stored.shape, element(stored.dtype).bits)
        yield Piece(name, stored.dtype, stored.shape, (0,) * len(stored.shape), empty)
    for box, place in stored.chunks.items():
        at = f"{where} at {list(box.offsets)}"
        data = loaded_tensor(_read(files, place), stored.dtype, box.sizes, at)
        yield Piece(name, stored.dtype, stored.shape, box.offsets, data)


def _read(files: Files, place: Place) -> bytearray:
    return files[place.file].read(place.offset, place.length)
