"""The unpacked files of a cache: what counts towards its size, what is unused, and that no process
keeps the others from them."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from data.cache.space import space_reservation
from data.index.compressed import unpacked_files
from data.index.compressed.unpacked_files import FileUses, bytes_in, changes, remove, unused


def test_a_process_that_was_forked_meanwhile_keeps_nothing_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked_files, "_PATIENCE_S", 0.0)
    with changes(tmp_path):
        kept = [os.dup(fd) for fd in _descriptors_of(tmp_path)]  # as a fork does
    assert len(kept) == 1
    with changes(tmp_path):
        pass
    os.close(kept[0])


def test_a_stopped_process_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked_files, "_PATIENCE_S", 0.0)
    with changes(tmp_path):
        with pytest.raises(TimeoutError, match="has not released it"), changes(tmp_path):
            pass
        with pytest.raises(TimeoutError):
            FileUses().add(tmp_path / "a.tar")
    assert not FileUses().add(tmp_path / "a.tar")


def test_what_a_killed_process_has_left_unfinished_is_unused(tmp_path: Path) -> None:
    begun, left = tmp_path / ".a.tar.node.tmp", tmp_path / ".b.tar.node.tmp"
    for path in (begun, left):
        path.write_bytes(bytes(100))
    old_s = time.time() - 2 * unpacked_files._LEFT_S
    os.utime(left, (old_s, old_s))
    assert [(one.name, one.bytes) for one in unused(tmp_path)] == [(left.name, 100)]
    assert remove(tmp_path, left.name)
    assert (begun.exists(), left.exists()) == (True, False)


def test_nothing_is_unused_where_nothing_was_unpacked(tmp_path: Path) -> None:
    assert unused(tmp_path / "unpacked") == []
    assert not (tmp_path / "unpacked").exists()


def test_what_is_reserved_for_a_download_counts(tmp_path: Path) -> None:
    with (tmp_path / "shard.part").open("wb") as file:
        if not space_reservation.reserve(file.fileno(), 1 << 20):
            pytest.skip("this file system reserves no space")
        (tmp_path / "shard.json").write_bytes(b"12")
        assert bytes_in(tmp_path) >= (1 << 20) + 2


def _descriptors_of(folder: Path) -> list[int]:
    """Return the open descriptors that hold a lock on a file in this folder."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):
            if Path(os.readlink(f"/proc/self/fd/{name}")).parent == folder:  # noqa: PTH115
                fcntl.fcntl(int(name), fcntl.F_GETFD)
                found.append(int(name))
    return found
