"""Parts of an object that are made when they are written."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpointing.service.upload_bandwidth import BandwidthTokenBucket, ThrottledStorage
from checkpointing.storage import Storage
from checkpointing.storage.lazy_parts import LazyPart, LazyParts, total_size
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.storage.posix.posix_storage import PosixStorage
from tests.unit.checkpointing.storage.posix.test_posix_storage import failing, storage_with

LARGE = 5 << 20  # bytes; more than is written at a time
KEY = "packs/00/x"


class Made:
    """Parts, and how often each was made."""

    def __init__(self) -> None:
        self.counts = [0, 0, 0]
        self.parts = LazyParts([b"head", *(LazyPart(LARGE, self._maker(n)) for n in range(3))])
        self.content = b"head" + b"".join(bytes([65 + n]) * LARGE for n in range(3))

    def _maker(self, number: int) -> Callable[[memoryview], None]:
        def fill(into: memoryview) -> None:
            self.counts[number] += 1
            into[:] = bytes([65 + number]) * LARGE

        return fill


def test_parts_are_made_when_asked_for() -> None:
    made = Made()
    assert (len(made.parts), made.parts.nbytes, total_size(made.parts)) == (
        4,
        4 + 3 * LARGE,
        4 + 3 * LARGE,
    )
    assert made.parts[0] == b"head"
    assert made.counts == [0, 0, 0]
    assert made.parts[-1] == b"C" * LARGE
    assert made.parts[1:3].nbytes == 2 * LARGE
    assert made.counts == [0, 0, 1]
    assert total_size([b"ab", memoryview(b"cde")]) == 5


@pytest.mark.parametrize("kind", ["memory", "posix", "throttled"])
def test_a_storage_makes_each_part_once(tmp_path: Path, kind: str) -> None:
    storage: Storage = (
        MemoryStorage("memory://lazy-parts") if kind == "memory" else PosixStorage(str(tmp_path))
    )
    if kind == "throttled":
        storage = ThrottledStorage(storage, BandwidthTokenBucket(1e12))
    made = Made()
    storage.put(KEY, made.parts)
    assert storage.get(KEY) == made.content
    assert made.counts == [1, 1, 1]
    storage.delete([KEY])


@pytest.mark.parametrize("call", ["writev", "fsync"])
def test_a_retry_makes_them_anew(tmp_path: Path, call: str) -> None:
    storage, calls = storage_with(tmp_path)
    storage.put("packs/00/other", [b"so that the folders are there"])
    made = Made()
    calls.faults[call] = [None, failing(errno.EIO)] if call == "writev" else [failing(errno.EIO)]
    storage.put(KEY, made.parts)
    assert storage.get(KEY) == made.content
    assert all(count >= 1 for count in made.counts)
    assert sum(made.counts) > 3
