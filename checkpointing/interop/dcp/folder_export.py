"""Exports a checkpoint as a folder of torch.distributed.checkpoint. Requires torch."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from checkpointing.format.item_table import TensorSpec
from checkpointing.format.tiles import Box
from checkpointing.format.torch_dtypes import torch_dtype
from checkpointing.format.values.json_values import decode
from checkpointing.interop import list_branches
from checkpointing.interop.atomic_files import OutputFile, new_files
from checkpointing.interop.dcp import folder_metadata
from checkpointing.interop.export_stream import stream
from checkpointing.interop.tensor_names import chosen, dotted, values_of
from checkpointing.interop.torch_save.value_bytes import saved, to_tensor
from checkpointing.storage import Buffer
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.torch_internals import StorageInfo, dcp_version

DATA = "__0_0.distcp"


def export_dcp(
    checkpoint: Checkpoint,
    folder: Path,
    items: Sequence[str] | None,
    on_bytes: Callable[[int], None] | None,
) -> None:
    """See `checkpointing.interop.dcp.export_dcp`."""
    wanted = chosen(checkpoint, items)
    tensors, values = checkpoint.tensors(wanted), values_of(checkpoint, wanted)
    names, places = dotted([*tensors, *values]), list_branches.lists_of(checkpoint)
    # the metadata is written last, as it makes the folder a checkpoint
    with new_files([folder / DATA, folder / folder_metadata.FILE]) as (data, index):
        blobs = _Blobs(data, names)

        def use(name: str, box: Box, raw: Buffer) -> None:
            blobs.add(name, box, saved(to_tensor(tensors[name].dtype, box.sizes, raw)))

        stream(checkpoint, tensors, use, on_bytes)
        for name, value in values.items():
            blobs.add(name, None, saved(decode(value)))
        boxes = {name: blobs.boxes.get(name, []) for name in tensors}
        metadata = Metadata(
            state_dict_metadata(tensors, boxes, values, names),
            planner_data={text: list_branches.keys(name, places) for name, text in names.items()},
            storage_data=blobs.places,
            storage_meta=StorageMeta(),
            **dcp_version(),
        )
        index.write_at(0, pickle.dumps(metadata))


def state_dict_metadata(
    tensors: Mapping[str, TensorSpec],
    boxes: Mapping[str, Sequence[Box]],
    values: Iterable[str],
    names: Mapping[str, str],
) -> dict[str, STORAGE_TYPES]:
    """Returns DCP's metadata of tensors and values, by dotted name."""
    found: dict[str, STORAGE_TYPES] = {}
    for name, spec in tensors.items():
        chunks = [
            ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))
            for box in boxes[name]
        ]
        properties = TensorProperties(dtype=torch_dtype(spec.dtype))
        found[names[name]] = TensorStorageMetadata(properties, torch.Size(spec.shape), chunks)
    return found | {names[name]: BytesStorageMetadata() for name in values}


class _Blobs:
    """Appends the output of torch.save to a file. Thread-safe."""

    def __init__(self, file: OutputFile, names: Mapping[str, str]) -> None:
        self._file, self._names = file, names
        self._lock = threading.Lock()
        self._end = 0
        self.places: dict[MetadataIndex, StorageInfo] = {}
        self.boxes: dict[str, list[Box]] = {}  # by full name, in the order of their indexes

    def add(self, name: str, box: Box | None, blob: bytes) -> None:
        with self._lock:
            at, self._end = self._end, self._end + len(blob)
            if box is None:
                index = MetadataIndex(self._names[name])
            else:
                boxes = self.boxes.setdefault(name, [])
                index = MetadataIndex(self._names[name], box.offsets, len(boxes))
                boxes.append(box)
            self.places[index] = StorageInfo(DATA, at, len(blob))
        self._file.write_at(at, blob)
