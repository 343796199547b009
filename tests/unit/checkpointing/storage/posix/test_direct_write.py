"""Large objects that are written past the page cache."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from checkpointing.storage.interface import Buffer
from checkpointing.storage.lazy_parts import LazyPart, LazyParts, Part
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.storage.posix.syscalls import Syscalls, file_system_of
from checkpointing.storage.posix.write_buffer import ALIGNMENT, WriteBuffer
from tests.unit.checkpointing.storage.posix.test_posix_storage import AT_ONCE, failing, files_in

SIZES = (8, 300_000, 5 << 20, ALIGNMENT, 1, 0, 6_000_001, 777)
LARGE = 3 * ALIGNMENT  # bytes of an object


def content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def lazy(data: bytes) -> LazyPart:
    def fill(into: memoryview) -> None:
        into[:] = data

    return LazyPart(len(data), fill)


def parts(*, first_is_lazy: bool) -> list[Part]:
    made = map(content, SIZES)
    return [lazy(d) if n % 2 != first_is_lazy else d for n, d in enumerate(made)]


class Watched(Syscalls):
    """Calls on a file system that says it is `kind`, and what was written past the page cache.

    Attributes:
        errors: raised by the next writes past the page cache, one each.
        direct: sizes of those that went well.
        other: sizes of all other writes.
    """

    def __init__(self, kind: str = "ext4", errors: Sequence[OSError] = ()) -> None:
        self._kind, self.errors = kind, [*errors]
        self._fds: set[int] = set()
        self.direct: list[int] = []
        self.other: list[int] = []

    def file_system(self, path: str) -> str:
        return self._kind

    def set_direct(self, fd: int, *, direct: bool) -> None:
        (self._fds.add if direct else self._fds.discard)(fd)

    def close(self, fd: int) -> None:
        self._fds.discard(fd)
        super().close(fd)

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        sizes = [*map(len, buffers)]
        if fd in self._fds:
            if self.errors:
                raise self.errors.pop(0)
            at = [np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers]
            assert not [n for n in sizes + at if n % ALIGNMENT]
        (self.direct if fd in self._fds else self.other).append(sum(sizes))
        return super().writev(fd, buffers)


def storage_with(root: Path, calls: Syscalls) -> PosixStorage:
    return PosixStorage(str(root), policy=AT_ONCE, syscalls=calls, direct_from=LARGE)


@pytest.mark.parametrize("first_is_lazy", [False, True])
def test_blocks_are_the_parts_end_to_end(first_is_lazy: bool) -> None:
    buffer = WriteBuffer()
    for _ in range(2):
        blocks = [bytes(block) for block in buffer.blocks(parts(first_is_lazy=first_is_lazy))]
        assert b"".join(blocks) == b"".join(map(content, SIZES))
        assert len(blocks) > 2
        assert not [block for block in blocks[:-1] if len(block) % ALIGNMENT]
    assert [*buffer.blocks([])] == []


@pytest.mark.parametrize("first_is_lazy", [False, True])
def test_views_are_the_parts_end_to_end(first_is_lazy: bool) -> None:
    buffer = WriteBuffer()
    for _ in range(2):
        views = [b"".join(v) for v in buffer.views(parts(first_is_lazy=first_is_lazy))]
        assert b"".join(views) == b"".join(map(content, SIZES))
        assert len(views) > 1


def test_whole_blocks_go_past_the_page_cache_and_the_rest_through_it(tmp_path: Path) -> None:
    calls = Watched()
    storage = storage_with(tmp_path, calls)
    for number, size in enumerate([LARGE - 1, LARGE, LARGE + 1]):
        storage.put(f"packs/{number}", LazyParts([b"x", lazy(content(size - 1))]))
        assert storage.get(f"packs/{number}") == b"x" + content(size - 1)
    assert calls.direct == [LARGE, LARGE]
    assert calls.other == [LARGE - 1, 1]


def test_a_real_disk(tmp_path: Path) -> None:
    """Whether or not the file system of the test can write past the page cache."""
    storage = PosixStorage(str(tmp_path))
    storage.put("packs/a", LazyParts(parts(first_is_lazy=True)))
    assert storage.get("packs/a") == b"".join(map(content, SIZES))


@pytest.mark.parametrize("kind", ["nfs4", "overlay", ""])
def test_other_file_systems_have_all_in_the_page_cache(tmp_path: Path, kind: str) -> None:
    calls = Watched(kind)
    storage_with(tmp_path, calls).put("packs/a", [content(LARGE)])
    assert (calls.direct, calls.other) == ([], [LARGE])


def test_a_file_system_that_cannot_after_all(tmp_path: Path) -> None:
    calls = Watched(errors=[failing(errno.EINVAL)])
    storage = storage_with(tmp_path, calls)
    for name in ("packs/a", "packs/b"):
        storage.put(name, [content(LARGE)])
        assert storage.get(name) == content(LARGE)
    assert (calls.direct, calls.other) == ([], [LARGE, LARGE])
    assert files_in(tmp_path) == ["packs/a", "packs/b"]
    assert storage.counters.retries == 0


def test_after_an_error_the_file_is_written_anew(tmp_path: Path) -> None:
    calls = Watched(errors=[failing(errno.EIO)])
    storage = storage_with(tmp_path, calls)
    storage.put("packs/a", [content(LARGE)])
    assert storage.get("packs/a") == content(LARGE)
    assert (calls.direct, calls.other) == ([LARGE], [])
    assert files_in(tmp_path) == ["packs/a"]
    assert storage.counters.retries == 1


def test_the_kind_of_a_file_system_is_read() -> None:
    assert Syscalls().file_system("/proc") == "proc"


def test_a_path_that_looks_like_several_lines_or_fields() -> None:
    odd = "/a\rb\x0b\x85\u2028\xa0c - ext4".replace(" ", "\\040").encode() + b"\xff"
    mounts = (
        b"1 1 0:50 / " + odd + b" rw - fuse.x\xff x rw\n2 1 253:1 / / rw shared:1 - xfs /a rw\n"
    )
    assert file_system_of(os.makedev(253, 1), mounts) == "xfs"
    assert file_system_of(os.makedev(0, 50), mounts).startswith("fuse")
    assert not file_system_of(os.makedev(8, 1), mounts)
