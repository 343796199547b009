"""Tars for tests, made and read by the standard library."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from data.index.shard.shard_index import ShardIndex
from data.index.tar.member_names import split_name

Files = Sequence[tuple[str, bytes]]

# sample: (key, {extension: (offset, size, CRC-32 of its header)})
Samples = list[tuple[str, dict[str, tuple[int, int, int]]]]


def tar_bytes(files: Files, format: int = tarfile.PAX_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=format, encoding="utf-8") as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def write_tar(path: Path, files: Files, format: int = tarfile.PAX_FORMAT) -> Path:
    path.write_bytes(tar_bytes(files, format))
    return path


def by_tarfile(content: bytes) -> Samples:
    """The samples as the standard library reads the members, grouped by name."""
    samples: Samples = []
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:", encoding="utf-8") as tar:
        for info in tar:
            split = split_name(info.name) if info.isreg() else None
            if split is None:
                continue
            key, extension = split
            header = zlib.crc32(content[info.offset_data - 512 : info.offset_data])
            if not samples or samples[-1][0] != key:
                samples.append((key, {}))
            samples[-1][1][extension] = (info.offset_data, info.size, header)
    return samples


def by_index(index: ShardIndex) -> Samples:
    return [
        (index.key(i), {m.extension: (m.offset, m.size, m.header) for m in index.members(i)})
        for i in range(len(index))
    ]
