"""Reads into memory that one gives: filled, or refused as other reads are."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from checkpointing.errors import DamagedError
from checkpointing.storage.interface import SupportsReadInto
from checkpointing.storage.posix.posix_storage import PosixStorage
from tests.unit.checkpointing.storage.posix.test_posix_storage import failing, storage_with


@pytest.mark.parametrize("call", ["open", "preadv"])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_read_into_memory_outlives(tmp_path: Path, call: str, number: int) -> None:
    storage, calls = storage_with(tmp_path)
    assert isinstance(storage, SupportsReadInto)
    storage.put("a/b", [b"some data"])
    calls.faults[call] = [failing(number)]
    room = bytearray(b"0123456789")
    storage.read_into("a/b", 5, memoryview(room)[2:5])
    assert room == b"01dat56789"
    assert (storage.counters.retries, storage.counters.bytes_in) == (1, 3)


def test_a_read_into_memory_that_cannot_be_filled(tmp_path: Path) -> None:
    storage = PosixStorage(str(tmp_path))
    storage.put("a/b", [b"some data"])
    storage.read_into("a/b", 9, memoryview(bytearray()))
    for start, length in ((5, 5), (9, 1), (10, 0), (1 << 40, 3)):
        with pytest.raises(DamagedError, match=r"a/b: .* it ends at byte 9"):
            storage.read_into("a/b", start, memoryview(bytearray(length)))
    for key in ("a", "a/c", "a/b/c"):
        with pytest.raises(FileNotFoundError):
            storage.read_into(key, 0, memoryview(bytearray(1)))
    with pytest.raises(ValueError):
        storage.read_into("a/b", -1, memoryview(bytearray(1)))
