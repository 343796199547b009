"""Flips bits of a cached shard, on the machine of the cache, where a drill runs it as `python -m
hpckit.faults.injection.shard_corruption FOLDER NUMBER`.

Bits are flipped in each of its tar headers and in the data that follows, so that the next reader of
any sample notices it, whichever of both it compares with the index (`data.check`).
"""

from __future__ import annotations

import random
import sys
import tarfile
from pathlib import Path
from typing import BinaryIO

from data.cache.files.cache_entry import WHOLE, CacheEntry
from data.index.tar.tar_header import BLOCK
from hpckit.faults.injection.failing_syscalls import CANNOT, UnsupportedFaultError


def corrupt_shard(cache: Path, number: int) -> Path:
    """Flip bits of the `number`-th, modulo their count, of the whole shards in the cache, and
    return its path.

    Shards that were found damaged before are not changed: a shard that is damaged twice in an hour
    counts as damaged at its source, which ends a run.

    Raises:
        FileNotFoundError: there is none yet.
        UnsupportedFaultError: each was found damaged before.
        OSError: it cannot be changed.
    """
    whole = sorted(path for path in cache.glob("*.shard") if CacheEntry.parse(path.name))
    if not whole:
        raise FileNotFoundError(f"{cache} has no complete shard")
    left = [path for path in whole if not path.with_suffix(".damaged").exists()]
    if not left:
        raise UnsupportedFaultError(f"{cache}: every shard in it is already damaged")
    path = left[number % len(left)]
    with tarfile.open(path) as tar, _writable(path) as file:
        for member in tar:
            flip(file, member.offset_data - BLOCK + random.randrange(BLOCK))
            if member.size:
                flip(file, member.offset_data + random.randrange(member.size))
    return path


def _writable(path: Path) -> BinaryIO:
    """Open a read-only file for writing; its mode differs only while it is opened, because the mode
    marks the file as whole."""
    try:
        return path.open("r+b", buffering=0)
    except PermissionError:
        path.chmod(WHOLE | 0o200)
        try:
            return path.open("r+b", buffering=0)
        finally:
            path.chmod(WHOLE)


def flip(file: BinaryIO, at: int) -> None:
    """Flip a bit of the byte at offset `at`."""
    file.seek(at)
    (old,) = file.read(1)
    file.seek(at)
    file.write(bytes([old ^ 1]))


def main(arguments: list[str]) -> int:
    """Run as a program. Exit status 1: there is no shard to damage yet; `CANNOT`: there never will
    be."""
    cache, number = arguments
    try:
        print(corrupt_shard(Path(cache), int(number)))
    except UnsupportedFaultError as error:
        print(error, file=sys.stderr)
        return CANNOT
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
