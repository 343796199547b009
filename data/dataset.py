"""A dataset: ordered shards, and each sample readable by its number."""

import json
import os
import resource
import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from data.errors import ShardError
from data.index import BLOCK, Member, SampleEntry, ShardIndex
from data.shards import find_shards
from data.sidecar import load_or_build

# {"__key__": str, "__url__": path of the shard as str, extension: bytes, ...}
Sample: TypeAlias = dict[str, Any]


def open_dataset(shards: str | Path | Sequence[str | Path]) -> "Dataset":
    """Open the shards of a folder, a glob, a `{000000..000012}` pattern, a tar, or a list of them.

    Raises DataError if nothing is found or a shard is given twice, ShardError for a broken one.
    """
    return Dataset(tuple(load_or_build(path) for path in find_shards(shards)))


class Dataset:
    """The samples of `shards`, numbered 0 .. len - 1 in order. Safe to read from many threads."""

    def __init__(self, shards: tuple[ShardIndex, ...]) -> None:
        self.shards = shards
        self._ends = np.cumsum([len(shard.samples) for shard in shards], dtype=np.int64)
        self._end_list: list[int] = self._ends.tolist()  # bisect on a list is faster for one
        self._files = _OpenShards(_descriptor_budget())

    def __len__(self) -> int:
        return self._end_list[-1] if self._end_list else 0

    @cached_property
    def fingerprint(self) -> str:
        """BLAKE3 (hex) of shard basenames, keys, extensions and sizes, in order.

        The same wherever the shards lie; another order of shards or samples is another one.
        """
        digest = blake3()
        for shard in self.shards:
            sizes = [
                [entry.key, [[ext, member.size] for ext, member in entry.members.items()]]
                for entry in shard.samples
            ]
            digest.update(json.dumps([shard.path.name, len(sizes), sizes]).encode() + b"\n")
        return digest.hexdigest()

    def locate(self, index: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(shard number, sample number in the shard) of each sample, in the shape of `index`.

        Raises IndexError outside [0, len).
        """
        samples = np.asarray(index, dtype=np.int64)
        if samples.size and not 0 <= int(samples.min()) <= int(samples.max()) < len(self):
            raise IndexError(f"sample numbers must be in 0..{len(self) - 1}")
        shards = np.searchsorted(self._ends, samples, side="right")
        starts = np.concatenate([[0], self._ends])
        return np.asarray(shards, dtype=np.int64), np.asarray(samples - starts[shards])

    def entry(self, index: int) -> tuple[ShardIndex, SampleEntry]:
        """The shard that holds a sample, and the sample's entry. Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} is not in 0..{len(self) - 1}")
        number = bisect_right(self._end_list, index)
        shard = self.shards[number]
        return shard, shard.samples[index - self._end_list[number] + len(shard.samples)]

    def read(self, index: int) -> Sample:
        """Read one sample: its key, its shard and the bytes of each member.

        Raises IndexError outside [0, len), ShardError if the shard is gone, short or changed.
        """
        shard, entry = self.entry(index)
        file = self._files.get(shard)
        sample: Sample = {"__key__": entry.key, "__url__": str(shard.path)}
        for extension, member in entry.members.items():
            sample[extension] = file.read(member)
        return sample

    def close(self) -> None:
        """Close the shard files; a later read opens them again."""
        self._files.clear()


class _OpenShard:
    """An open descriptor. Closed when the last reader lets go, so no reader meets a reused one."""

    def __init__(self, shard: ShardIndex) -> None:
        self._path = shard.path
        try:
            self._fd = os.open(shard.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._fd = -1
            raise ShardError(shard.path, 0, f"cannot be opened: {error.strerror}") from error
        size = os.fstat(self._fd).st_size
        if size != shard.bytes:
            problem = f"has {size} bytes, had {shard.bytes} when indexed; open the dataset again"
            raise ShardError(shard.path, min(size, shard.bytes), problem)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def read(self, member: Member) -> bytes:
        """The member's bytes, read with its header, which must be the indexed one."""
        block = self._read(member.offset - BLOCK, member.size + BLOCK)
        if zlib.crc32(block[:BLOCK]) != member.header:
            problem = "the tar header here is not the indexed one: the shard was changed;"
            problem += " delete its .index.json and open the dataset again"
            raise ShardError(self._path, member.offset - BLOCK, problem)
        return block[BLOCK:]

    def _read(self, offset: int, size: int) -> bytes:
        try:
            block = os.pread(self._fd, size, offset)
            while len(block) < size:  # one call gives at most 2 GiB
                more = os.pread(self._fd, size - len(block), offset + len(block))
                if not more:
                    problem = f"the file ends here, {size - len(block)} bytes too early"
                    raise ShardError(self._path, offset + len(block), problem)
                block += more
        except OSError as error:
            raise ShardError(self._path, offset, f"cannot be read: {error.strerror}") from error
        return block


class _OpenShards:
    """The `limit` shards used last, open."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: OrderedDict[Path, _OpenShard] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, shard: ShardIndex) -> _OpenShard:
        with self._lock:
            file = self._open.get(shard.path) or _OpenShard(shard)
            self._open[shard.path] = file
            self._open.move_to_end(shard.path)
            if len(self._open) > self._limit:
                self._open.popitem(last=False)
            return file

    def clear(self) -> None:
        with self._lock:
            self._open.clear()


def _descriptor_budget() -> int:
    """How many shards to hold open: a quarter of what the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1024 if soft == resource.RLIM_INFINITY else max(16, soft // 4)
