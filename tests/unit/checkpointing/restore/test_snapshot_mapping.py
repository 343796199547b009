"""A snapshot that is mapped before it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpointing.restore import snapshot_mapping
from checkpointing.restore.snapshot_mapping import SnapshotMapping
from checkpointing.service.client.held_snapshots import LeftoverArena
from checkpointing.staging import arena as arenas
from checkpointing.staging.arena import Arena
from checkpointing.staging.slot_layout import PAGE

SLOT = 20 * PAGE
LENGTH = 17 * PAGE - 5


def mapped_bytes(arena: Arena) -> int:
    """The bytes of the arena that this process has mapped: proc_pid_smaps(5)."""
    first = arena.view(0, 1).ctypes.data
    text = Path("/proc/self/smaps").read_text()
    lines = text[text.index(f"{first:x}-") :].splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:"))


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[LeftoverArena]:
    """What a trainer has left in its second slot."""
    monkeypatch.setattr(snapshot_mapping, "_STEP", 4 * PAGE)
    with Arena.create(3 * SLOT) as made:
        made.view(SLOT, LENGTH)[:] = 7
        with Arena.attach(os.dup(made.fd)) as arena:
            yield LeftoverArena(arena, 3, SLOT, (SLOT, LENGTH))


def test_what_was_left_is_mapped_and_read_from_there(
    left: LeftoverArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mapped_bytes(left.arena) == 0
    SnapshotMapping(left).wait()
    assert mapped_bytes(left.arena) == 17 * PAGE
    monkeypatch.delattr(os, "preadv")  # the kernel copies nothing
    into = bytearray(LENGTH)
    left.arena.read_into(SLOT, memoryview(into))
    assert into == bytes([7]) * LENGTH
    left.arena.read_into(SLOT + PAGE + 3, memoryview(into)[:9])
    left.arena.read_into(SLOT, memoryview(into)[:0])
    with pytest.raises(AttributeError, match="preadv"):
        left.arena.read_into(SLOT + LENGTH - 4, memoryview(into)[:9])


def test_a_part_that_is_not_mapped_is_read_by_the_kernel(left: LeftoverArena) -> None:
    assert left.arena.map_ahead(SLOT, SLOT + 4 * PAGE)
    assert left.arena.map_ahead(SLOT + 8 * PAGE, SLOT + 12 * PAGE)  # so the first is not known
    for start in range(SLOT, SLOT + LENGTH - 2 * PAGE, PAGE):
        into = bytearray(2 * PAGE)
        left.arena.read_into(start, memoryview(into))
        assert into == bytes([7]) * (2 * PAGE)


def test_nothing_is_mapped_of_memory_without_a_snapshot() -> None:
    with Arena.create(SLOT) as arena:
        for nothing in (None, LeftoverArena(arena, 1, SLOT)):
            mapping = SnapshotMapping(nothing)
            mapping.stop()
            mapping.stop()
        assert mapped_bytes(arena) == 0


def test_memory_that_is_closed_or_cannot_be_mapped_ends_it(
    left: LeftoverArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arenas, "_MADV_POPULATE_READ", 9999)  # of a kernel that does not have it
    SnapshotMapping(left).wait()
    into = bytearray(LENGTH)
    left.arena.read_into(SLOT, memoryview(into))
    assert into == bytes([7]) * LENGTH
    monkeypatch.undo()
    left.arena.close()
    SnapshotMapping(left).wait()
