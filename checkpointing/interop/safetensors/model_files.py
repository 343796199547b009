"""Reads and writes models in Hugging Face's layout: safetensors files, and an index if there are
several."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import FormatError
from checkpointing.format.element_types import element
from checkpointing.format.item_table import TensorSpec
from checkpointing.format.object_keys import SaveId
from checkpointing.format.tiles import Box, tile_shape, tiles, whole
from checkpointing.interop.atomic_files import OutputFile, new_files
from checkpointing.interop.box_runs import widened, write_box
from checkpointing.interop.export_stream import stream
from checkpointing.interop.piece_import import save_pieces, source_of
from checkpointing.interop.safetensors import header as headers
from checkpointing.interop.safetensors.index import SUFFIX
from checkpointing.interop.safetensors.reader import SafetensorsReader
from checkpointing.interop.tensor_forms import TensorForm
from checkpointing.interop.tensor_names import check_item, chosen, dotted, full_name, items_of
from checkpointing.storage import Buffer
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.store import Store
from checkpointing.store.write.part_writer import TensorPiece

SHARD = 5 << 30  # bytes
_READ = 32 << 20  # bytes read at a time, or one tile
INDEX = "model.safetensors.index.json"
Change = Callable[[str, Box, NDArray[Any]], NDArray[Any]]  # (tensor, box, its raw elements)


@dataclass(frozen=True)
class SafetensorsShard:
    """One file to write."""

    header: bytes
    starts: Mapping[str, int]  # first byte of each tensor in the file, by full name
    names: tuple[str, ...]  # names of the tensors in the file


def export_safetensors(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    items: Sequence[str] | None = None,
    forms: Mapping[str, TensorForm] | None = None,
    change: Change | None = None,
    left_out: Collection[str] = (),
    stem: str = "model",
    max_shard_bytes: int = SHARD,
    on_bytes: Callable[[int], None] | None = None,
) -> list[Path]:
    """Write tensors to `folder` in Hugging Face's layout. Returns the files.

    Tensors of one item are named without it ("model/layers.0.weight": "layers.0.weight"), those of
    several with it ("model.layers.0.weight"). Values that are not tensors are left out. A few
    chunks are in memory at a time; the files get their names when all are durable.

    Args:
        items: the items to export; None: all.
        forms: how each of the tensors is written, by full name; None: unchanged.
        change: called with each box of a tensor, in any thread; returns the elements to write,
            before they are laid out by the tensor's form. None: unchanged.
        left_out: tensors of these items that are not written, by full name.
        stem: prefix of the names of the files.
        max_shard_bytes: largest number of bytes of tensors in a file, unless it has only one
            tensor.
        on_bytes: called with the number of raw bytes written.

    Raises:
        FileExistsError: the folder already has such files.
        KeyError: there is no such item.
        FormatError: a dtype is not in the format; there are no tensors, or two of one name; the
            tensors are others than those of `forms`.
        DamagedError: the checkpoint cannot be read as it was written.
        OSError: writing failed; nothing is left behind.
    """
    everything = checkpoint.tensors(chosen(checkpoint, items))
    tensors = {name: spec for name, spec in everything.items() if name not in left_out}
    if not tensors:
        raise FormatError(f"{checkpoint.id} has no tensors in {items or checkpoint.items}")
    forms = _unchanged_forms(tensors) if forms is None else forms
    _check_forms(checkpoint, tensors, forms)
    there = {n: replace(spec, shape=forms[n].shape(spec.shape)) for n, spec in tensors.items()}
    shards = plan(there, {name: form.name for name, form in forms.items()}, max_shard_bytes)
    _refuse_others(folder)
    files = shard_names(len(shards), stem)
    documents = [INDEX] if len(shards) > 1 else []
    paths = [folder / name for name in [*files, *documents]]
    with new_files(paths) as outputs:
        written = list(zip(outputs[: len(files)], shards, strict=True))
        _write(checkpoint, tensors, forms, change or _unchanged, written, on_bytes)
        for output in outputs[len(files) :]:
            output.write_at(0, index_of(tensors, dict(zip(files, shards, strict=True))))
    return paths


def _unchanged(name: str, box: Box, cells: NDArray[Any]) -> NDArray[Any]:
    return cells


def _unchanged_forms(tensors: Mapping[str, TensorSpec]) -> dict[str, TensorForm]:
    owners = items_of(tensors)
    names = dotted(tensors, without=owners if len(owners) == 1 else ())
    return {name: TensorForm(there) for name, there in names.items()}


def _check_forms(
    checkpoint: Checkpoint, tensors: Mapping[str, TensorSpec], forms: Mapping[str, TensorForm]
) -> None:
    if others := sorted(tensors.keys() ^ forms.keys()):
        which = "is not in" if others[0] in forms else "cannot be written from"
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        raise FormatError(f"{others[0]!r} {which} {checkpoint.id}{more}")


def plan(
    tensors: Mapping[str, TensorSpec], names: Mapping[str, str], size: int
) -> list[SafetensorsShard]:
    """Divide tensors among files of at most `size` bytes, in order; none is cut.

    Raises:
        FormatError: as `header.build`.
    """
    groups: list[list[str]] = [[]]
    filled = 0
    for name, spec in tensors.items():
        if groups[-1] and filled + spec.bytes > size:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += spec.bytes
    return [_shard(group, tensors, names) for group in groups]


def _shard(
    group: Sequence[str], tensors: Mapping[str, TensorSpec], names: Mapping[str, str]
) -> SafetensorsShard:
    # the widest elements first, so that all are aligned
    order = sorted(group, key=lambda n: (-element(tensors[n].dtype).itemsize, names[n]))
    entries, end = {}, 0
    for name in order:
        entry = headers.SafetensorsEntry(tensors[name].dtype, tensors[name].shape, end)
        entries[name] = entry
        end += entry.size
    # transformers requires this entry, which names the framework of the tensors
    header = headers.build({names[n]: entry for n, entry in entries.items()}, {"format": "pt"})
    starts = {name: len(header) + entry.start for name, entry in entries.items()}
    return SafetensorsShard(header, starts, tuple(names[name] for name in order))


def shard_names(count: int, stem: str = "model") -> list[str]:
    """Returns the names of the files."""
    if count == 1:
        return [f"{stem}{SUFFIX}"]
    return [f"{stem}-{i + 1:05d}-of-{count:05d}{SUFFIX}" for i in range(count)]


def index_of(tensors: Mapping[str, TensorSpec], shards: Mapping[str, SafetensorsShard]) -> bytes:
    """Returns the index: the file of each tensor."""
    total = sum(spec.bytes for spec in tensors.values())
    places = {name: file for file, shard in shards.items() for name in shard.names}
    body = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    return json.dumps(body, indent=2).encode() + b"\n"


def _refuse_others(folder: Path) -> None:
    there = sorted(path.name for path in folder.glob(f"*{SUFFIX}*"))
    if there:
        raise FileExistsError(
            f"{folder} already has {there[0]}, which would mix with the export: choose another "
            "folder, or remove it"
        )


def _write(
    checkpoint: Checkpoint,
    tensors: Mapping[str, TensorSpec],
    forms: Mapping[str, TensorForm],
    change: Change,
    outputs: Sequence[tuple[OutputFile, SafetensorsShard]],
    on_bytes: Callable[[int], None] | None,
) -> None:
    places = {name: (file, at) for file, s in outputs for name, at in s.starts.items()}
    for file, shard in outputs:
        file.write_at(0, shard.header)

    def use(name: str, box: Box, raw: Buffer) -> None:
        file, at = places[name]
        spec, form = tensors[name], forms[name]
        kind = element(spec.dtype)
        cells = change(name, box, np.frombuffer(raw, kind.bits).reshape(box.sizes))
        for there, part in form.pieces(spec.shape, box, cells):
            content = part.reshape(-1).view(np.uint8).data
            write_box(file, at, form.shape(spec.shape), kind.itemsize, there, content)

    stream(checkpoint, tensors, use, on_bytes)


def import_safetensors(
    path: Path,
    store: Store,
    run: str,
    step: int,
    *,
    item: str = "model",
    on_bytes: Callable[[int], None] | None = None,
) -> SaveId:
    """Import the tensors of safetensors files as a new checkpoint, bit for bit.

    Args:
        path: a file, an index (`*.safetensors.index.json`), or a folder with an index or one file.
        item: the item to which the tensors are added: with "model", "layers.0.weight" becomes
            "model/layers.0.weight".
        on_bytes: called with the number of raw bytes written.

    Raises:
        FileNotFoundError: there are no such files at `path`.
        DamagedError: a file is damaged, or does not match the index.
        FormatError: a dtype is unknown to this version.
        SaveError, StoreError: the checkpoint was not committed.
    """
    check_item(item)
    with SafetensorsReader(Path(path)) as reader:
        pieces = (piece for name in reader.tensors for piece in _pieces(reader, name, item))
        source = source_of(Path(path), "safetensors")
        return save_pieces(store, run, step, pieces, {}, on_bytes, source)


def _pieces(reader: SafetensorsReader, there: str, item: str) -> Iterator[TensorPiece]:
    entry, name = reader.tensors[there], full_name((item, there))
    kind = element(entry.dtype)
    if not entry.size:
        empty = np.empty(entry.shape, kind.bits)
        yield TensorPiece(name, entry.dtype, entry.shape, (0,) * len(entry.shape), empty)
    tile = tile_shape(entry.shape, kind.itemsize)
    for box in tiles(whole(entry.shape), widened(tile, entry.shape, _READ // kind.itemsize)):
        yield TensorPiece(name, entry.dtype, entry.shape, box.offsets, reader.read(there, box))
