"""Measures how many bytes one save of some tensors adds to the disk, by hpckit and its peers."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import zstandard
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from benchmarks.store.store_saves import StoreSaves, bytes_under
from checkpointing.format.chunks import Chunk, Place
from checkpointing.format.torch_dtypes import as_array, as_bytes, dtype_name
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, WrittenPart

Tensors = Mapping[str, Tensor]
Sizes = Counter[str]  # bytes by kind of tensor
ALL = "all"
READ = "read"  # what a restore of the whole save reads


class SaveArm(Protocol):
    """A save method that keeps its state between saves."""

    def save(self, step: int, tensors: Tensors) -> Sizes:
        """Bytes that the save has added: of each kind that can be told apart, of `ALL`, and of
        `READ`, that a restore of it reads."""


def kind_of(name: str) -> str:
    """ "exp_avg" for "optimizer/state.token.weight.exp_avg", "weights" of the model."""
    item, _, path = name.partition("/")
    return "weights" if item == "model" else path.rpartition(".")[2]


class Raw:
    """The raw bytes of the tensors."""

    def save(self, step: int, tensors: Tensors) -> Sizes:
        sizes: Sizes = Counter()
        for name, tensor in tensors.items():
            sizes[kind_of(name)] += tensor.nbytes
            sizes[ALL] += tensor.nbytes
            sizes[READ] += tensor.nbytes
        return sizes


class Zstd:
    """The bytes of each tensor in one zstd frame of level 1, without a file format."""

    def save(self, step: int, tensors: Tensors) -> Sizes:
        sizes: Sizes = Counter()
        for name, tensor in tensors.items():
            stored = len(zstandard.compress(as_bytes(tensor.contiguous()), 1))
            sizes[kind_of(name)] += stored
            sizes[ALL] += stored
            sizes[READ] += stored
        return sizes


@dataclass
class Dcp:
    """torch DCP with a folder for each save, which is removed once it is measured."""

    folder: Path

    def save(self, step: int, tensors: Tensors) -> Sizes:
        try:
            dcp_save(dict(tensors), storage_writer=FileSystemWriter(self.folder), no_dist=True)
            stored = bytes_under(self.folder)
            return Counter({ALL: stored, READ: stored})
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class HpckitSaveArm:
    """A store that keeps all saves. `ALL` is what is on the disk: packs, manifests, records."""

    folder: Path
    depth: int = 1
    _saves: StoreSaves = field(init=False)
    _packs: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        options = WriteOptions(encoder=ChunkEncoder(depth=self.depth))
        self._saves = StoreSaves(self.folder, options)

    def save(self, step: int, tensors: Tensors) -> Sizes:
        before = bytes_under(self.folder)
        written = self._saves.save(step, pieces(tensors))
        sizes = self._by_kind(written)
        sizes[ALL] = bytes_under(self.folder) - before
        sizes[READ] = sum(_read_by_restore(written).values())
        return sizes

    def close(self) -> None:
        self._saves.close()

    def _by_kind(self, written: WrittenPart) -> Sizes:
        """Returns the stored bytes of the chunks in new packs."""
        chunks = {
            chunk.id: (kind_of(name), chunk.length)
            for table in written.tables.values()
            for name, placed in table.chunks.items()
            for chunk in placed.values()
            if chunk.pack not in self._packs
        }
        self._packs |= written.packs.keys()
        sizes: Sizes = Counter()
        for kind, length in chunks.values():
            sizes[kind] += length
        return sizes


def _read_by_restore(written: WrittenPart) -> dict[Place, int]:
    """Returns the stored bytes of every chunk and of its bases, by location."""
    found: dict[Place, int] = {}
    for table in written.tables.values():
        for placed in table.chunks.values():
            for chunk in placed.values():
                at: Chunk | None = chunk
                while at is not None:
                    found[at.place] = at.length
                    at = at.base
    return found


def pieces(tensors: Tensors) -> list[TensorPiece]:
    """Returns each tensor as one whole piece."""
    return [
        TensorPiece(name, dtype_name(t.dtype), tuple(t.shape), (0,) * t.ndim, as_array(t))
        for name, t in tensors.items()
    ]
