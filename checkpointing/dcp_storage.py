"""torch.distributed.checkpoint storage for our layout: raw bytes and JSON, nothing pickled."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from checkpointing import durable
from checkpointing.catalog import read_chunk
from checkpointing.dtypes import as_bytes, copy_bits, dtype_name, dtype_of, from_bytes
from checkpointing.errors import DamagedError
from checkpointing.layout import MANIFEST, bin_name, part_name
from checkpointing.manifest import Chunk, Header, Manifest, assemble, part_to_json, to_json

_PIECE = 4 << 20  # bytes written and hashed at a time, while they are in the CPU's cache


class DirectoryWriter(StorageWriter):
    """Writes one checkpoint: each rank its bin and its part record, then rank 0 the manifest.

    DCP calls `finish` only after `write_data` has ended well on every rank, so where the manifest
    is, everything it refers to is durable.
    """

    def __init__(self, directory: Path, rank: int, header: Header) -> None:
        self._directory, self._rank, self._header = directory, rank, header
        self.manifest: Manifest | None = None  # on rank 0, once committed

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool) -> None:
        durable.make_dirs(self._directory)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        with durable.new_file(self._directory / bin_name(self._rank)) as file:
            chunks, offset = [], 0
            for item in plan.items:
                data = as_bytes(_tensor_of(planner, item))
                hasher = blake3()
                for piece in _pieces(data):
                    file.write(piece)
                    hasher.update(piece)
                chunks.append(self._chunk(item, offset, len(data), hasher.hexdigest()))
                offset += len(data)
        record = part_to_json(self._header.id, self._rank, chunks)
        durable.publish(self._directory / part_name(self._rank), record)
        results = [
            WriteResult(index=item.index, size_in_bytes=chunk.length, storage_data=chunk)
            for item, chunk in zip(plan.items, chunks, strict=True)
        ]
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        manifest = assemble(self._header, (r.storage_data for rank in results for r in rank))
        durable.publish(self._directory / MANIFEST, to_json(manifest))
        self.manifest = manifest

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # only ever made by Checkpointer, never looked up by a path

    def _chunk(self, item: WriteItem, offset: int, length: int, digest: str) -> Chunk:
        assert item.tensor_data is not None
        return Chunk(
            fqn=item.index.fqn,
            dtype=dtype_name(item.tensor_data.properties.dtype),
            shape=tuple(item.tensor_data.size),
            offsets=tuple(item.tensor_data.chunk.offsets),
            sizes=tuple(item.tensor_data.chunk.sizes),
            file=bin_name(self._rank),
            offset=offset,
            length=length,
            blake3=digest,
        )


class DirectoryReader(StorageReader):
    """Reads the chunks that a rank needs; nothing reaches a tensor before its hash was checked."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory = directory
        self._manifest = manifest
        self._chunks = {(c.fqn, c.offsets): c for c in manifest.chunks}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        pass

    def read_metadata(self) -> Metadata:
        tensors: dict[str, TensorStorageMetadata] = {}
        for c in self._manifest.chunks:
            properties = TensorProperties(dtype=dtype_of(c.dtype))
            empty = TensorStorageMetadata(properties, torch.Size(c.shape), [])
            box = ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes))
            tensors.setdefault(c.fqn, empty).chunks.append(box)
        return Metadata(state_dict_metadata=dict(tensors))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for chunk, items in self._by_chunk(plan):
            stored = self._read(chunk)
            for item in items:
                box = zip(item.storage_offsets, item.lengths, strict=True)
                source = stored[tuple(slice(start, start + n) for start, n in box)]
                copy_bits(planner.resolve_tensor(item), source)
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    def _by_chunk(self, plan: LoadPlan) -> Iterator[tuple[Chunk, list[ReadItem]]]:
        """Each chunk once, in the order of the files."""
        wanted: dict[Chunk, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            index = item.storage_index
            wanted[self._chunks[index.fqn, tuple(index.offset or ())]].append(item)
        yield from sorted(wanted.items(), key=lambda pair: (pair[0].file, pair[0].offset))

    def _read(self, chunk: Chunk) -> Tensor:
        dtype = dtype_of(chunk.dtype)
        if chunk.length != math.prod(chunk.sizes) * dtype.itemsize:
            raise DamagedError(f"{chunk.fqn!r}: {chunk.length} bytes do not make {chunk.sizes}")
        return from_bytes(read_chunk(self._directory, chunk), dtype, chunk.sizes)


def _tensor_of(planner: SavePlanner, item: WriteItem) -> Tensor:
    tensor = planner.resolve_data(item)
    assert isinstance(tensor, Tensor)
    return tensor.contiguous()


def _pieces(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


def _done(result: object) -> Future:  # type: ignore[type-arg]
    future: Future = Future()  # type: ignore[type-arg]
    future.set_result(result)
    return future
