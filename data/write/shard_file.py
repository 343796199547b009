"""Writing one shard: it appears whole and durable with its index, which is made while writing."""

import os
import tarfile
import uuid
from pathlib import Path

from data.durable_files import fsync_path
from data.errors import DataError
from data.index import shard_access
from data.index.shard.shard_index import ShardIndex
from data.index.shard.shard_scan import StreamedShardIndexer
from data.index.tar.tar_header import BLOCK


class ShardFile:
    """A new tar at `path`. The same members give the same bytes, on every machine.

    It is written under a temporary name; `path` appears with `finish`. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        self._file = self._temporary.open("xb")
        self._passing = StreamedShardIndexer(path)
        self.size = 0  # bytes written so far, without the padding at the end

    def add(self, name: str, content: bytes | memoryview) -> None:
        """Append a member. Raises ShardError if it cannot belong to a sample, OSError."""
        size = len(content)
        self._write(_header(name, size))
        self._write(content)
        self._write(bytes(-size % BLOCK))

    def _write(self, chunk: bytes | memoryview) -> None:
        self._passing.feed(chunk)
        self._file.write(chunk)
        self.size += len(chunk)

    def finish(self) -> ShardIndex:
        """End the tar, make it durable and rename it to `path`, which must not exist.

        Raises DataError if it exists, OSError.
        """
        self._write(bytes(2 * BLOCK))
        self._write(bytes(-self.size % tarfile.RECORDSIZE))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        _, tag = shard_access.stat(str(self._temporary), None)
        index = self._passing.finish(tag)
        _publish(self._temporary, self.path)
        fsync_path(self.path.parent)
        return index

    def abort(self) -> None:
        """Remove the temporary file."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


def _header(name: str, size: int) -> bytes:
    """Return the header of a member, as tarfile writes it in pax format.

    It contains nothing of this machine: no owner, no times, no permissions.
    """
    if not name.isascii() or len(name) > 100 or size > _MOST_OCTAL:
        return _info(name, size).tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    block = bytearray(_EMPTY)
    block[: len(name)] = name.encode()
    block[124:135] = b"%011o" % size
    block[148:154] = b"%06o" % sum(block)  # the field itself holds spaces at this point
    block[154] = 0
    return bytes(block)


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mtime = 0
    info.mode = 0o644
    return info


_MOST_OCTAL = 8**11 - 1  # bytes
_EMPTY = bytearray(_info("", 0).tobuf(tarfile.USTAR_FORMAT))
_EMPTY[148:156] = b" " * 8


def _publish(temporary: Path, path: Path) -> None:
    """Rename, but never over an existing file."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise DataError(f"{path} already exists and is not overwritten") from None
    except OSError:  # a file system without hard links
        if path.exists():
            raise DataError(f"{path} already exists and is not overwritten") from None
        temporary.rename(path)
    else:
        temporary.unlink()
