"""One shard as it is written: whole and durable or not there, with its index, read never again."""

import io
import os
import tarfile
import uuid
from pathlib import Path
from typing import BinaryIO, cast

from data.errors import DataError
from data.files import fsync_path
from data.indexing import access
from data.indexing.scan import PassingIndex
from data.indexing.shard import ShardIndex


class ShardFile:
    """A new tar at `path`. The same members give the same bytes, on every machine.

    Written under a temporary name, `path` appears with `finish`. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        self._file = self._temporary.open("xb")
        self._passing = PassingIndex(path)
        self._stream = _Stream(self._file, self._passing)
        self._tar = tarfile.open(  # noqa: SIM115 (closed by finish and abort)
            fileobj=cast(BinaryIO, self._stream),
            mode="w",
            format=tarfile.PAX_FORMAT,
            encoding="utf-8",
        )

    @property
    def size(self) -> int:
        """The bytes written so far, without the padding of the end."""
        return self._stream.bytes

    def add(self, name: str, content: bytes | memoryview) -> None:
        """Append a member. Raises ShardError if it cannot be of a sample, OSError."""
        info = _header(name, len(content))
        self._tar.addfile(info, io.BytesIO(content))
        self._tar.members.clear()  # type: ignore[attr-defined]  # else it keeps every header

    def finish(self) -> ShardIndex:
        """End the tar, make it durable and give it its name, which must be free.

        Raises DataError if it is not, OSError.
        """
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        _, tag = access.stat(str(self._temporary), None)
        _publish(self._temporary, self.path)
        fsync_path(self.path.parent)
        return self._passing.finish(tag)

    def abort(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class _Stream:
    """What tarfile writes into: the file, and the index that watches."""

    def __init__(self, file: BinaryIO, passing: PassingIndex) -> None:
        self.bytes = 0
        self._file = file
        self._passing = passing

    def write(self, chunk: bytes) -> int:
        self._passing.feed(chunk)
        self.bytes += len(chunk)
        return self._file.write(chunk)

    def tell(self) -> int:
        return self.bytes


def _header(name: str, size: int) -> tarfile.TarInfo:
    """A header without anything of this machine: no owner, no times, no permissions of its own."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mtime = 0
    info.mode = 0o644
    return info


def _publish(temporary: Path, path: Path) -> None:
    """Rename, but never over a file that is there."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise DataError(f"{path} is already there; it is not overwritten") from None
    except OSError:  # a file system without links
        if path.exists():
            raise DataError(f"{path} is already there; it is not overwritten") from None
        temporary.rename(path)
    else:
        temporary.unlink()
