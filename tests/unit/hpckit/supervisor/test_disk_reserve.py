"""Room that is kept on a disk, on one that is really full."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.supervisor.disk_reserve import RESERVE_BYTES, DiskReserve


def test_a_full_disk_has_room_again_and_another_one_keeps_it(small_disk: Path) -> None:
    reserve = DiskReserve(small_disk)
    reserve.allocate()
    reserve.allocate()
    (kept,) = small_disk.iterdir()
    assert kept.stat().st_blocks * 512 == RESERVE_BYTES
    assert not reserve.release_if_full()
    assert [*small_disk.iterdir()] == [kept]
    with pytest.raises(OSError), (small_disk / "fill").open("wb", buffering=0) as file:  # noqa: PT012
        while True:
            file.write(b"\0" * 4096)
    with pytest.raises(OSError):
        (small_disk / "verdict").write_bytes(b"why")
    assert reserve.release_if_full()
    (small_disk / "verdict").write_bytes(b"why" * 4096)


def test_where_there_is_no_room_to_begin_with_it_is_said(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OSError), (small_disk / "fill").open("wb", buffering=0) as file:  # noqa: PT012
        while True:
            file.write(b"\0" * 4096)
    reserve = DiskReserve(small_disk)
    reserve.allocate()
    assert "cannot reserve disk space for the verdict" in caplog.text
    assert reserve.release_if_full(), "the disk is full all the same"
    reserve.remove()
    assert [path.name for path in small_disk.iterdir()] == ["fill"]
