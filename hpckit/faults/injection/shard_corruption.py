"""Bits of a cached shard that are not what came, on the machine where the cache is: run there as
`python -m hpckit.faults.injection.shard_corruption FOLDER NUMBER`.

They are in each of its tar headers and in what follows it, so that whoever reads any sample of it
next is to see it, whichever of both is compared with the index (`data.check`).
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
    """The `number`-th, going round, of the whole shards in the cache; bits of it are flipped now.

    Those that were found damaged before are left alone: a shard that is damaged twice in an hour
    is taken for one that is so at its source, which ends a run.

    Raises:
        FileNotFoundError: there is none yet.
        CannotError: each was found damaged before.
        OSError: it cannot be changed.
    """
    whole = sorted(path for path in cache.glob("*.shard") if CacheEntry.parse(path.name))
    if not whole:
        raise FileNotFoundError(f"{cache} has no whole shard")
    left = [path for path in whole if not path.with_suffix(".damaged").exists()]
    if not left:
        raise UnsupportedFaultError(f"{cache}: each shard in it was damaged already")
    path = left[number % len(left)]
    with tarfile.open(path) as tar, _writable(path) as file:
        for member in tar:
            flip(file, member.offset_data - BLOCK + random.randrange(BLOCK))
            if member.size:
                flip(file, member.offset_data + random.randrange(member.size))
    return path


def _writable(path: Path) -> BinaryIO:
    """It is nobody's to write in; its mode, which says so, is another for a moment alone."""
    try:
        return path.open("r+b", buffering=0)
    except PermissionError:
        path.chmod(WHOLE | 0o200)
        try:
            return path.open("r+b", buffering=0)
        finally:
            path.chmod(WHOLE)


def flip(file: BinaryIO, at: int) -> None:
    """A bit of the byte at `at`."""
    file.seek(at)
    (old,) = file.read(1)
    file.seek(at)
    file.write(bytes([old ^ 1]))


def main(arguments: list[str]) -> int:
    """Exit status 1: there is nothing to damage yet; `CANNOT`: there never is."""
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
