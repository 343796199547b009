"""One snapshot as a file: what is written is read, and damage never is."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.values.json_values import Json
from checkpointing.service import private_folder
from checkpointing.service.snapshots import Generation, RankSnapshot, SlotBox, SnapshotLayout
from checkpointing.service.spool import spool_file
from checkpointing.service.spool.spool_file import SpoolHeader
from tests.effort import times

BLOCK = 1024


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_file, "BLOCK", BLOCK)


def spooled(size: int = 2500, step: int = 7) -> SpoolHeader:
    layout = SnapshotLayout("digest", (SlotBox("model/w", "uint8", (size,), (0,), (size,), 0),))
    values: dict[str, Json] = {"extra/x": [1, {"$float": "nan"}, "ü"]}
    snapshot = RankSnapshot(
        Generation("0123abcd", 3, 5), 2, step, 1, layout, values, {"loss": 0.5}, 12.5, 3.0
    )
    return SpoolHeader(snapshot, owner=5, store="ab" * 16, since=4, slots=2, slot_bytes=4096)


def slot(seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, 4096, np.uint8)


def written(folder: Path, said: SpoolHeader, memory: NDArray[np.uint8]) -> Path:
    path = folder / said.name
    assert spool_file.write(path, said, memory, 2) == path.stat().st_size
    return path


def read(path: Path) -> tuple[SpoolHeader, NDArray[np.uint8]]:
    with spool_file.opened(path) as (fd, head):
        into = np.zeros(head.spooled.bytes, np.uint8)
        spool_file.read(fd, head, into, 2, path)
        return head.spooled, into


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path, spooled(), slot())


@pytest.fixture
def whole(path: Path) -> bytes:
    return path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2500, 4096])
def test_what_is_written_is_read(tmp_path: Path, size: int) -> None:
    said, memory = spooled(size), slot()
    path = written(tmp_path, said, memory)
    got, cells = read(path)
    assert got == said
    assert np.array_equal(cells, memory[:size])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == [said.name]


def test_one_that_is_there_is_replaced(tmp_path: Path) -> None:
    said = spooled()
    (tmp_path / said.name).write_bytes(b"damaged")
    path = written(tmp_path, said, slot())
    assert read(path)[0] == said
    assert [entry.name for entry in tmp_path.iterdir()] == [said.name]


@settings(
    max_examples=times(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damage_at_any_byte_is_found(path: Path, whole: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(whole) - 1), "at")
    flip = data.draw(st.integers(1, 255), "flip")
    path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
    with pytest.raises((DamagedError, FormatError)) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, DamagedError) or 8 <= at < 12  # the version


@settings(
    max_examples=times(50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_one_that_is_cut_or_grows_is_found(path: Path, whole: bytes, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, len(whole) - 1), "kept")
    for content in (whole[:kept], whole + whole[: kept + 1]):
        path.write_bytes(content)
        with pytest.raises(DamagedError):
            read(path)


@pytest.mark.parametrize("one", [0, 1, 2])
def test_a_block_of_another_file_is_found(
    tmp_path: Path, path: Path, whole: bytes, one: int
) -> None:
    """Each block is whole, and its hash goes along."""
    (tmp_path / "other").mkdir()
    theirs = written(tmp_path / "other", spooled(), slot(1)).read_bytes()
    data = bytearray(whole)
    with spool_file.opened(path) as (_, head):
        start, end = (head.start + at for at in head.blocks[one])
        tail = head.start + head.spooled.bytes + spool_file.HASH * one
    data[start:end] = theirs[start:end]
    data[tail : tail + spool_file.HASH] = theirs[tail : tail + spool_file.HASH]
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="hashes of its blocks"):
        read(path)


def test_one_under_another_name_is_found(tmp_path: Path, path: Path) -> None:
    path = path.rename(tmp_path / spooled(step=8).name)
    with pytest.raises(DamagedError, match="another file"):
        read(path)


def test_a_link_is_not_followed(tmp_path: Path, path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic"), spool_file.opened(link):
        pass


def test_a_header_without_end_is_refused_before_it_is_read(path: Path, whole: bytes) -> None:
    data = bytearray(whole)
    data[12:16] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="a header of 4294967295 bytes"):
        read(path)


@pytest.mark.parametrize("call", ["writev", "fsync", "close", "link"])
def test_of_a_failed_write_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real: Callable[..., object] = getattr(private_folder.PrivateFiles, call)

    def failing(self: object, *args: object) -> object:
        if call == "close":
            real(self, *args)
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(private_folder.PrivateFiles, call, failing)
    with pytest.raises(OSError, match="Input/output"):
        spool_file.write(tmp_path / spooled().name, spooled(), slot(), 2)
    assert list(tmp_path.iterdir()) == []
