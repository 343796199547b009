"""Folders that can be written to, by really writing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpckit.submit.preflight.writable_folder import unwritable


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB of its own."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(tmp_path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_folder_that_can_be_made_is_no_problem_and_is_not_made(tmp_path: Path) -> None:
    assert unwritable("root", tmp_path / "deep" / "run") == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (line,) = unwritable("root", tmp_path / "file" / "run")
    assert line == f"root: {tmp_path}/file is not a folder; {tmp_path}/file/run cannot be made"


def test_a_full_disk_is_found_by_writing(small_disk: Path) -> None:
    assert unwritable("root", small_disk / "run") == []
    with open(small_disk / "filled", "wb", buffering=0) as file:
        while file.write(bytes(1 << 16)) == 1 << 16:  # a full disk takes less, or nothing
            if shutil.disk_usage(small_disk).free == 0:
                break
    (line,) = unwritable("root", small_disk / "run")
    assert f"a file of 1 MiB cannot be written to {small_disk} (No space" in line
    assert [path.name for path in small_disk.iterdir()] == ["filled"]


def test_a_read_only_file_system_is_named(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    (line,) = unwritable("checkpoint.url", small_disk / "run")
    assert line.startswith(f"checkpoint.url: {small_disk} is on a read-only file system; ")
