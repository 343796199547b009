"""Reads into memory that one gives: filled, or refused as other reads are."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from checkpointing.errors import DamagedError
from checkpointing.storage.interface import SupportsReadInto
from checkpointing.storage.posix.posix_storage import PosixStorage
from tests.unit.checkpointing.storage.posix.test_posix_storage import Faulty, failing, storage_with


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


def opened(calls: Faulty) -> list[str]:
    """The files that were opened for reading since the last call, by name."""
    found = [
        str(arguments[0]).rpartition("/")[2] for name, arguments in calls.made if name == "open"
    ]
    calls.made.clear()
    return found


def test_a_file_stays_open_while_it_is_read_in_order(tmp_path: Path) -> None:
    storage, calls = storage_with(tmp_path)
    storage.put("a/b", [b"some data"])
    storage.put("a/c", [b"more data"])
    room = memoryview(bytearray(4))
    opened(calls)
    with storage.reading_in_order():
        for key, start, content in (("a/b", 0, b"some"), ("a/b", 5, b"data"), ("a/c", 0, b"more")):
            storage.read_into(key, start, room)
            assert bytes(room) == content
        assert opened(calls) == ["b", "c"]
        calls.faults["preadv"] = [failing(errno.ESTALE)]
        storage.read_into("a/c", 5, room)
        assert bytes(room) == b"data"
        assert opened(calls).count("c") == 1, "it is opened anew after an error"
        with pytest.raises(DamagedError):
            storage.read_into("a/c", 7, room)


def test_no_file_stays_open_after_the_block(tmp_path: Path) -> None:
    storage = PosixStorage(str(tmp_path))
    storage.put("a/b", [b"some data"])
    with storage.reading_in_order():
        storage.read_into("a/b", 0, memoryview(bytearray(4)))
        assert str(tmp_path / "a/b") in files_of_this_process()
    assert str(tmp_path / "a/b") not in files_of_this_process()


def test_a_descriptor_that_cannot_be_closed_is_no_failed_read(tmp_path: Path) -> None:
    storage, calls = storage_with(tmp_path)
    storage.put("a/b", [b"some data"])
    with storage.reading_in_order():
        storage.read_into("a/b", 0, memoryview(bytearray(4)))
        calls.faults["close"] = [failing(errno.EIO)]
    assert calls.faults["close"] == []


def files_of_this_process() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this very listing
            found.add(str(link.readlink()))
    return found


def test_much_is_read_in_calls_that_the_kernel_reads_ahead_of(tmp_path: Path) -> None:
    storage, calls = storage_with(tmp_path)
    content = bytes(range(256)) * (10 << 10)  # 2.5 MiB
    storage.put("a/b", [content])
    room = bytearray(len(content) - 3)
    calls.made.clear()
    storage.read_into("a/b", 3, memoryview(room))
    assert room == content[3:]
    assert [name for name, _ in calls.made].count("preadv") == 3
