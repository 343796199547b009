"""Imports a folder of torch.distributed.checkpoint as a new checkpoint. Requires torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from checkpointing.errors import FormatError
from checkpointing.format.element_types import element
from checkpointing.format.object_keys import SaveId
from checkpointing.interop.atomic_files import InputFile
from checkpointing.interop.dcp.folder_metadata import (
    DcpFolderContents,
    DcpTensor,
    FileRange,
    PathKeys,
    read_contents,
)
from checkpointing.interop.list_branches import record
from checkpointing.interop.piece_import import save_pieces, source_of
from checkpointing.interop.tensor_names import full_name
from checkpointing.interop.torch_save.value_bytes import loaded_tensor, loaded_value
from checkpointing.store.store import Store
from checkpointing.store.write.part_writer import TensorPiece

Files = Mapping[str, InputFile]


def import_dcp(
    folder: Path,
    store: Store,
    run: str,
    step: int,
    item: str | None,
    on_bytes: Callable[[int], None] | None,
) -> SaveId:
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


def full_paths(contents: DcpFolderContents, item: str | None) -> dict[str, PathKeys]:
    """Returns the path in the checkpoint of each tensor and value, by DCP's name.

    Raises:
        FormatError: two paths would be the same.
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
        raise FormatError(
            f"several tensors would have the same name: {', '.join(twice)}; give another item"
        )
    return paths


def _file_names(contents: DcpFolderContents) -> list[str]:
    chunks = [place for stored in contents.tensors.values() for place in stored.chunks.values()]
    return sorted({place.file for place in [*chunks, *contents.values.values()]})


def _pieces(files: Files, name: str, stored: DcpTensor, where: str) -> Iterator[TensorPiece]:
    if 0 in stored.shape:
        empty = np.empty(stored.shape, element(stored.dtype).bits)
        yield TensorPiece(name, stored.dtype, stored.shape, (0,) * len(stored.shape), empty)
    for box, place in stored.chunks.items():
        at = f"{where} at {list(box.offsets)}"
        data = loaded_tensor(_read(files, place), stored.dtype, box.sizes, at)
        yield TensorPiece(name, stored.dtype, stored.shape, box.offsets, data)


def _read(files: Files, place: FileRange) -> bytearray:
    return files[place.file].read(place.offset, place.length)
