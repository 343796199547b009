from __future__ import annotations

import os
import stat
from pathlib import Path
from unittest import mock

import pytest

from checkpointing import durable


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def test_publish_creates_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    durable.publish(path, b"first")
    with pytest.raises(FileExistsError):
        durable.publish(path, b"second")
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["manifest.json"]


def test_a_failed_fsync_publishes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    error = OSError(5, "Input/output error")
    with mock.patch("os.fsync", side_effect=error), pytest.raises(OSError, match="manifest"):
        durable.publish(path, b"data")
    assert names(tmp_path) == []


def test_data_is_durable_before_its_name_is(tmp_path: Path) -> None:
    calls = []
    real_fsync, real_link = os.fsync, os.link

    def fsync(fd: int) -> None:
        calls.append("fsync " + ("dir" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"))
        real_fsync(fd)

    def link(source: Path, target: Path) -> None:
        calls.append("link")
        real_link(source, target)

    with mock.patch("os.fsync", fsync), mock.patch("os.link", link):
        durable.publish(tmp_path / "m", b"data")
    assert calls.index("fsync file") < calls.index("link")
    assert calls[-1] == "fsync dir"


def test_remove_takes_the_manifest_first(tmp_path: Path) -> None:
    directory = tmp_path / "ckpt"
    directory.mkdir()
    (directory / "manifest.json").touch()
    with mock.patch("shutil.rmtree", side_effect=OSError(5, "cut short")), pytest.raises(OSError):
        durable.remove_checkpoint(directory)
    assert names(directory) == []
    durable.remove_checkpoint(directory)
    durable.remove_checkpoint(directory)  # gone already: no error
    assert not directory.exists()


def test_make_dirs_and_probe(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    durable.make_dirs(deep)
    durable.make_dirs(deep)
    durable.probe(deep)
    assert names(deep) == []
    with mock.patch("os.link", side_effect=OSError(95, "not supported")), pytest.raises(OSError):
        durable.probe(deep)
    assert names(deep) == []
