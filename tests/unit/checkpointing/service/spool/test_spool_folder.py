"""The folder of spooled snapshots: whose it is, how much of it there is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from checkpointing.errors import ServiceError
from checkpointing.service.snapshots import Generation, RankSnapshot, SlotBox, SnapshotLayout
from checkpointing.service.spool.spool_file import SpoolHeader
from checkpointing.service.spool.spool_folder import SpoolFolder

SIZE = 3000


def spooled(step: int, rank: int = 0, generation: str = "aaaaaaaa") -> SpoolHeader:
    layout = SnapshotLayout("digest", (SlotBox("model/w", "uint8", (SIZE,), (0,), (SIZE,), 0),))
    snapshot = RankSnapshot(Generation(generation, 2), rank, step, 0, layout)
    return SpoolHeader(snapshot, None, None, -1, 1, 4096)


def spool(root: Path, bound: int | None = None) -> SpoolFolder:
    return SpoolFolder(root, "run-key", bound, 1)


MEMORY = np.zeros(4096, np.uint8)


def names(there: SpoolFolder) -> list[str]:
    return [file.path.name for file in there.files()]


def test_what_is_put_is_listed_until_it_is_removed(tmp_path: Path) -> None:
    there = spool(tmp_path / "local")
    assert there.files() == []
    assert not there.root.exists()  # looking makes nothing
    for step in (7, 8):
        size = there.put(spooled(step), MEMORY)
    assert [(f.generation, f.rank, f.step, f.bytes) for f in there.files()] == [
        ("aaaaaaaa", 0, 7, size),
        ("aaaaaaaa", 0, 8, size),
    ]
    there.remove(["aaaaaaaa-0-7.snapshot", "not-there"])
    assert names(there) == ["aaaaaaaa-0-8.snapshot"]
    there.close()
    assert there.folder.exists()
    there.remove(names(there))
    there.close()
    assert list(there.root.iterdir()) == []


def test_what_was_not_finished_is_swept_and_what_is_not_known_is_left(tmp_path: Path) -> None:
    there = spool(tmp_path / "local")
    there.sweep()
    there.put(spooled(7), MEMORY)
    begun = there.folder / f".aaaaaaaa-0-8.snapshot.{'0' * 16}.tmp"
    begun.write_bytes(b"x")
    (there.folder / "notes").write_text("mine")
    there.sweep()
    assert sorted(path.name for path in there.folder.iterdir()) == [
        "aaaaaaaa-0-7.snapshot",
        "notes",
    ]
    assert names(there) == ["aaaaaaaa-0-7.snapshot"]


def test_the_bound_is_kept_by_what_is_over(tmp_path: Path) -> None:
    there = spool(tmp_path / "local", bound=3 * SIZE)
    there.put(spooled(6), MEMORY)
    there.put(spooled(7), MEMORY)
    with pytest.raises(OSError, match="local_bytes=9000") as caught:
        there.put(spooled(8), MEMORY)
    assert caught.value.errno == errno.EDQUOT
    assert names(there) == ["aaaaaaaa-0-6.snapshot", "aaaaaaaa-0-7.snapshot"]
    there.put(spooled(8), MEMORY, over=names(there))
    assert names(there) == ["aaaaaaaa-0-7.snapshot", "aaaaaaaa-0-8.snapshot"]


@pytest.mark.parametrize("which", ["root", "folder"])
@pytest.mark.parametrize("how", ["open", "link", "file"])
def test_what_is_not_the_users_alone_is_refused(tmp_path: Path, which: str, how: str) -> None:
    there = spool(tmp_path / "local")
    path = getattr(there, which)
    if which == "folder":
        there.root.mkdir(mode=0o700)
    if how == "open":
        path.mkdir(mode=0o750)
        path.chmod(0o750)
    elif how == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.touch(mode=0o600)
    if which == "root" and how == "open":
        there.folder.mkdir(mode=0o700)
    with pytest.raises(ServiceError, match=r"mode 0700 \(not a link\)"):
        there.put(spooled(7), MEMORY)
    if which == "folder" or how == "open":
        with pytest.raises(ServiceError, match="mode 0700"):
            there.files()


def test_another_users_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can play another user; run the tests as root")
    there = spool(tmp_path / "local")
    there.root.mkdir(mode=0o700)
    os.chown(there.root, 65534, 65534)
    with pytest.raises(ServiceError, match="user 0 with mode 0700"):
        there.put(spooled(7), MEMORY)


def test_no_folder_is_made_where_the_disk_is_not_mounted(tmp_path: Path) -> None:
    there = spool(tmp_path / "nvme" / "local")
    with pytest.raises(ServiceError, match=r"no directory .*nvme: create it"):
        there.put(spooled(7), MEMORY)
    assert list(tmp_path.iterdir()) == []
