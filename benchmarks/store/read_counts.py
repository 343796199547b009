"""Counts what hpckit and torch DCP read to restore DTensors, for `store_reads`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from checkpointing import Checkpoint, Checkpointer, Store
from checkpointing.format.tiles import Box
from checkpointing.layout.dtensor_placement import local_shard
from checkpointing.staging.staging_buffers import local
from checkpointing.storage.posix.posix_storage import PosixStorage

SHAPES: Mapping[str, tuple[int, ...]] = {
    "token": (50257, 768),
    "blocks.0.mlp_in": (3072, 768),
    "blocks.0.mlp_out": (768, 3072),
    "blocks.0.out": (768, 768),
    "blocks.0.bias": (3072,),
    "blocks.1.mlp_in": (4096, 1024),
    "blocks.1.mlp_out": (1024, 4096),
    "blocks.1.norm": (1024,),
}
RUN = "benchmark"
ROOT = "weights"  # of the saved state


@dataclass(frozen=True)
class ShardingLayout:
    """The number of ranks, and the dimension along which matrices are sharded."""

    ranks: int
    dim: int

    @property
    def name(self) -> str:
        return f"{self.ranks}-ranks-shard-{self.dim}"


@dataclass
class ReadCount:
    """The counts of one restore."""

    needed: int = 0  # bytes
    read: int = 0  # bytes
    requests: int = 0

    def __iadd__(self, other: ReadCount) -> Self:
        self.needed += other.needed
        self.read += other.read
        self.requests += other.requests
        return self


def save(layout: ShardingLayout, folder: Path) -> None:
    """Saves the tensors in all formats. A collective."""
    tensors = _tensors(layout, _content)
    for compress in (True, False):
        root = _root(folder, layout, compress)
        with closing(Checkpointer(root, run=RUN, compress=compress)) as checkpointer:
            checkpointer.save(1, {ROOT: tensors})
    dcp_save(dict(tensors), storage_writer=FileSystemWriter(_dcp(folder, layout)))


def load(
    way: str, saved: ShardingLayout, loaded: ShardingLayout, names: Sequence[str], folder: Path
) -> ReadCount:
    """Loads the named tensors or all, checks them, and returns what this rank read. Collective."""
    tensors = _tensors(loaded, _empty, names)
    count = WAYS[way](saved, tensors, folder)
    for name, tensor in tensors.items():
        if not torch.equal(local(tensor), _content(name)[_box(name, tensor).slices]):
            raise AssertionError(f"{way} did not restore {name!r}")
        count.needed += local(tensor).nbytes
    return count


def total(mine: ReadCount) -> ReadCount:
    """Returns the sum over all ranks. A collective."""
    counts: list[ReadCount] = [ReadCount()] * dist.get_world_size()
    dist.all_gather_object(counts, mine)
    result = ReadCount()
    for count in counts:
        result += count
    return result


class _CountingFile(io.FileIO):
    """A file that counts the bytes that are read from it."""

    def __init__(self, path: str | os.PathLike[str], count: ReadCount) -> None:
        super().__init__(path, "rb")
        self._count = count

    def readinto(self, buffer: Any) -> int:
        size = super().readinto(buffer)
        self._count.read += size
        self._count.requests += 1
        return size

    def readall(self) -> bytes:
        data = super().readall()
        self._count.read += len(data)
        self._count.requests += 1
        return data


class _CountingFiles(FileSystem):
    def __init__(self, count: ReadCount) -> None:
        self._count = count

    @contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase, None, None]:
        if mode != "rb":
            raise ValueError(f"{path}: opened to {mode!r} by a load")
        raw = _CountingFile(path, self._count)
        with io.BufferedReader(raw, os.fstat(raw.fileno()).st_blksize) as file:  # as open() does
            yield file


def _by_hpckit(
    compress: bool, saved: ShardingLayout, tensors: dict[str, DTensor], folder: Path
) -> ReadCount:
    root = _root(folder, saved, compress)
    if len(tensors) < len(SHAPES):
        return _some_by_hpckit(root, tensors)
    with closing(Checkpointer(root, run=RUN)) as checkpointer:
        if checkpointer.restore({ROOT: tensors}) is None:
            raise AssertionError(f"no checkpoint in {root}")
        return _counted(checkpointer._store)


def _some_by_hpckit(root: Path, tensors: Mapping[str, DTensor]) -> ReadCount:
    """Reads a part of a checkpoint by `Store`, as a tool does."""
    with closing(Store.open(root)) as store:
        checkpoint = Checkpoint(store, store.manifests(RUN)[0])
        for name, tensor in tensors.items():
            array = checkpoint.read(f"{ROOT}/{name}", _box(name, tensor))
            local(tensor).copy_(torch.from_numpy(array).view(tensor.dtype))
        return _counted(store)


def _counted(store: Store) -> ReadCount:
    counters = cast(PosixStorage, store.storage).counters
    return ReadCount(read=counters.bytes_in, requests=counters.requests)


def _by_dcp(saved: ShardingLayout, tensors: dict[str, DTensor], folder: Path) -> ReadCount:
    count = ReadCount()
    reader = FileSystemReader(_dcp(folder, saved))
    reader.fs = _CountingFiles(count)
    dcp_load(dict(tensors), storage_reader=reader)
    return count


WAYS: Mapping[str, Callable[[ShardingLayout, dict[str, DTensor], Path], ReadCount]] = {
    "hpckit": partial(_by_hpckit, True),
    "hpckit, raw": partial(_by_hpckit, False),
    "torch DCP": _by_dcp,
}


def _tensors(
    layout: ShardingLayout, make: Callable[[str], Tensor], names: Sequence[str] = ()
) -> dict[str, DTensor]:
    mesh = init_device_mesh("cpu", (layout.ranks,))
    return {
        name: distribute_tensor(
            make(name), mesh, [Shard(min(layout.dim, len(SHAPES[name]) - 1))], src_data_rank=None
        )
        for name in names or SHAPES
    }


def _box(name: str, tensor: DTensor) -> Box:
    found = local_shard(name, tensor)
    if found is None or len(found.parts) != 1:
        raise AssertionError(f"this rank does not hold one box of {name!r}")
    return found.parts[0].box


@cache
def _content(name: str) -> Tensor:
    generator = torch.Generator().manual_seed(list(SHAPES).index(name))
    return torch.randn(SHAPES[name], generator=generator)


def _empty(name: str) -> Tensor:
    return torch.zeros(SHAPES[name])


def _root(folder: Path, layout: ShardingLayout, compress: bool) -> Path:
    return folder / f"{'compressed' if compress else 'raw'}-{layout.name}"


def _dcp(folder: Path, layout: ShardingLayout) -> Path:
    return folder / f"dcp-{layout.name}"
