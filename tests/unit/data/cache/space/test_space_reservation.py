"""What a cache counts as held while other processes finish and remove shards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from data.cache.files.cache_entry import CacheEntry
from data.cache.files.cache_folder import CacheFolder
from data.cache.space import space_reservation

ENTRY = CacheEntry("0" * 24, "1" * 12, 5, "s.tar")


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    folder = CacheFolder(tmp_path)
    for kind in ("part", "json"):
        folder.path(ENTRY, kind).write_bytes(b"12345")
    return folder


def become_whole(folder: CacheFolder) -> None:
    folder.path(ENTRY, "part").rename(folder.path(ENTRY, "shard"))


@pytest.mark.parametrize("kinds", [("part", "json"), ("json",), ("json", "part", "shard")])
def test_a_part_that_becomes_a_shard_is_counted_once(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]
) -> None:
    """Whichever of its names the kernel gave while the folder was read."""
    list_folder = os.scandir

    @contextmanager
    def scandir(path: Path) -> Iterator[list[Path]]:
        with list_folder(path):
            become_whole(folder)
            yield [folder.path(ENTRY, kind) for kind in kinds]

    monkeypatch.setattr(os, "scandir", scandir)
    assert [(one.entry, one.kind) for one in space_reservation.cached_files(folder)] == [
        (ENTRY, "shard")
    ]


def test_a_part_that_becomes_a_shard_while_it_is_looked_up(
    folder: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        try:
            return look(path)
        finally:
            if path.suffix == ".shard" and not path.exists():
                become_whole(folder)

    monkeypatch.setattr(Path, "lstat", lstat)
    assert [one.kind for one in space_reservation.cached_files(folder)] == ["shard"]


def test_what_is_gone_is_not_counted(folder: CacheFolder) -> None:
    folder.path(ENTRY, "part").unlink()
    assert space_reservation.cached_files(folder) == []
