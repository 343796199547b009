"""Writing one shard: the same files give the same bytes, on every machine."""

import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

from data.errors import DataError
from data.scan import SourceFile


def write_shard(path: Path, source: Path, samples: Sequence[Sequence[SourceFile]]) -> None:
    """Write the samples' files under `source` to a new, durable tar at `path`.

    Raises OSError, and DataError for a file that is not as long as it was planned.
    """
    with path.open("xb") as file:
        with tarfile.open(
            fileobj=file, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8"
        ) as tar:
            for member in (member for sample in samples for member in sample):
                content = (source / member.name).read_bytes()
                if len(content) != member.size:
                    raise DataError(f"{source / member.name} changed while packing; pack again")
                tar.addfile(_header(member.name, len(content)), io.BytesIO(content))
        file.flush()
        os.fsync(file.fileno())


def _header(name: str, size: int) -> tarfile.TarInfo:
    """A header without anything of this machine: no owner, no times, no permissions of its own."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mtime = 0
    info.mode = 0o644
    return info
