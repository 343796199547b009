"""Imports a torch.save file as a new checkpoint, without torch except for names of its dtypes and
sizes."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.element_types import element
from checkpointing.format.object_keys import SaveId
from checkpointing.format.tiles import Box, tile_shape, tiles, whole
from checkpointing.format.values.branch_kinds import RECORD
from checkpointing.format.values.json_values import Json, encode
from checkpointing.interop.box_runs import read_box, widened
from checkpointing.interop.list_branches import record
from checkpointing.interop.piece_import import save_pieces, source_of
from checkpointing.interop.tensor_names import check_item
from checkpointing.interop.torch_save.archive import TorchArchive, open_archive
from checkpointing.interop.torch_save.pickled_tensors import PickledTensor, conjugated, parse
from checkpointing.interop.torch_save.state_tree import TREE, FlattenedTree, flatten_tree
from checkpointing.store.store import Store
from checkpointing.store.write.part_writer import TensorPiece

ITEM = "model"
_READ = 32 << 20  # bytes read at a time, or one tile
_TIMES = 64
"""How many times the bytes of the file tensors may have, as views that share a storage."""
_MIN_LIMIT = 64 << 20


def import_torch(
    file: Path,
    store: Store,
    run: str,
    step: int,
    *,
    item: str | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> SaveId:
    """Import a file of torch.save as a new checkpoint, bit for bit: nested dicts, lists and tuples
    of tensors and plain values. `file_export.export_torch` restores the same.

    Nothing in the file is executed or unpickled: its pickle is read as data. A few tiles are in
    memory at a time. Only the elements of a tensor are kept: it is restored contiguous, with a
    storage of its own and without requires_grad. An array becomes a tensor.

    Args:
        item: the item to which everything is added: with "model", ["layers.0.weight"] becomes
            "model/layers.0.weight". None: each entry of the file's dict is an item; but if all of
            them are tensors, as in the state of a single module, they are added to "model".
        on_bytes: called with the number of raw bytes written.

    Raises:
        FormatError: torch.save of 1.6 or later did not write it, or something in it is neither
            a dense tensor nor a plain value; nothing was saved.
        DamagedError: the file is damaged; nothing was saved.
        SaveError, StoreError: the checkpoint was not committed.
    """
    if item is not None:
        check_item(item)
    with open_archive(file) as archive:
        tree = parse(archive.pickle(), str(file))
        tensors, values = leaves_of(tree, item, str(file))
        check(archive, tensors)
        source = source_of(file, "torch.save")
        return save_pieces(store, run, step, pieces(archive, tensors), values, on_bytes, source)


def leaves_of(tree: Any, item: str | None, where: str) -> tuple[dict[str, Any], dict[str, Json]]:
    """Returns tensors by full name, and values, which include the record of the tree's structure.

    Raises:
        FormatError: the tree contains something else, or its root cannot be an item.
    """
    if item is None and _is_flat(tree):
        item = ITEM
    root = tree if item is None else {item: tree}
    if not isinstance(root, dict) or not all(type(key) is str for key in root):
        raise FormatError(
            f"{where}: holds a {type(tree).__name__}, or a dict whose keys are not strings; give "
            "the item of the checkpoint that it becomes (--item)"
        )
    if not root:
        raise FormatError(f"{where}: holds an empty dict: there is nothing to import")
    taken = FlattenedTree()
    try:
        below = [flatten_tree(held, _is_tensor, (key,), taken) for key, held in root.items()]
        outline = encode(("dict", [*root], below), "its containers")
    except TypeError as error:
        raise FormatError(f"{where}: {error}") from error
    said = record(taken.paths).get(RECORD, {})
    assert isinstance(said, dict)
    return taken.tensors, {**taken.values, RECORD: {**said, TREE: outline}}


def _is_tensor(thing: object) -> bool:
    return isinstance(thing, PickledTensor | np.ndarray)


def _is_flat(tree: Any) -> bool:
    """Whether it is the state of one module: only tensors, by name."""
    return isinstance(tree, dict) and bool(tree) and all(map(_is_tensor, tree.values()))


def check(archive: TorchArchive, tensors: Mapping[str, Any]) -> None:
    """Check, before anything is saved, that the file has everything that is needed as it was
    written.

    Raises:
        DamagedError: it has not.
        FormatError: the tensors have many more bytes than the file.
    """
    stored = {name: one for name, one in tensors.items() if isinstance(one, PickledTensor)}
    for name, one in stored.items():
        size = archive.place(f"data/{one.storage}").size
        if size != one.storage_bytes:
            raise DamagedError(
                f"{archive.file.path}: {name!r} is in a storage of {one.storage_bytes} bytes, but "
                f"its record has {size} bytes"
            )
    total, most = sum(one.bytes for one in stored.values()), _TIMES * archive.file.size + _MIN_LIMIT
    if total > most:
        largest = max(stored, key=lambda name: stored[name].bytes)
        raise FormatError(
            f"{archive.file.path}: its tensors have {total} bytes, more than {_TIMES} times the "
            f"file's: expanded views, such as {largest!r}; save the tensors that they expand"
        )
    for storage in {one.storage: None for one in stored.values()}:
        archive.check(f"data/{storage}")


def pieces(archive: TorchArchive, tensors: Mapping[str, Any]) -> Iterator[TensorPiece]:
    """Yields the tensors in pieces, which are read on demand."""
    for name, one in tensors.items():
        yield from _pieces(archive, name, one)


def _pieces(archive: TorchArchive, name: str, held: Any) -> Iterator[TensorPiece]:
    if isinstance(held, np.ndarray):
        dtype = held.dtype.name
        held = np.ascontiguousarray(held, held.dtype.newbyteorder("=")).reshape(held.shape)
        cells = np.asarray(held).view(element(dtype).bits)
        yield TensorPiece(name, dtype, held.shape, (0,) * held.ndim, cells)
        return
    kind, origin = element(held.dtype), (0,) * len(held.shape)
    if 0 in held.shape:
        yield TensorPiece(name, held.dtype, held.shape, origin, np.empty(held.shape, kind.bits))
        return
    read = _contiguous if held.is_contiguous else _strided
    extents = widened(tile_shape(held.shape, kind.itemsize), held.shape, _READ // kind.itemsize)
    for box in tiles(whole(held.shape), extents):
        cells = conjugated(held, read(archive, held, box))
        yield TensorPiece(name, held.dtype, held.shape, box.offsets, cells)


def _contiguous(archive: TorchArchive, held: PickledTensor, box: Box) -> NDArray[Any]:
    kind, place = element(held.dtype), archive.place(f"data/{held.storage}")
    data = bytearray(box.count * kind.itemsize)
    at = place.start + held.offset * kind.itemsize
    read_box(archive.file, at, held.shape, kind.itemsize, box, memoryview(data))
    return np.frombuffer(data, kind.bits).reshape(box.sizes)


def _strided(archive: TorchArchive, held: PickledTensor, box: Box) -> NDArray[Any]:
    """As `_contiguous`, for a view with other strides, for which the storage is mapped."""
    kind, place = element(held.dtype), archive.place(f"data/{held.storage}")
    first = place.start - place.start % mmap.ALLOCATIONGRANULARITY
    with archive.file.mapped(first, place.start + place.size - first) as mapped:
        at = place.start - first + held.offset * kind.itemsize
        strides = tuple(stride * kind.itemsize for stride in held.strides)
        view: NDArray[Any] = np.ndarray(held.shape, kind.bits, mapped, at, strides)
        found = np.array(view[box.slices], order="C")
        del view  # otherwise it would keep the mapping
    return found
