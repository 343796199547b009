"""What a store should not have any more."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store.store import Store
from hpckit.faults.campaign.store_leftovers import LONG_S, store_leftovers
from tests.unit.checkpointing.store import saves

RUN = "a"
PACK = f"packs/ab/ab{'0' * 30}.pack"
NOBODYS = (
    PACK,
    f"runs/{RUN}/parts/0000000001-0123abcd.00000",
    "leases/0123abcd.0000000001.lease",
    "tombs/0123456789abcdef",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    storage = PosixStorage(str(tmp_path))
    saves.save_all(Store.at(storage, create=True), RUN, {1: {"model/a": 1}, 2: {"model/a": 2}})
    return tmp_path


def leave(root: Path, key: str, age_s: float) -> None:
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left")
    os.utime(path, (time.time() - age_s,) * 2)


def test_what_checkpoints_need_is_not_left(root: Path) -> None:
    for path in root.glob("packs/*/*"):
        os.utime(path, (1.0, 1.0))
    assert store_leftovers(str(root), RUN, is_own=True) == []
    assert store_leftovers(str(root / "none"), RUN, is_own=True) == []


@pytest.mark.parametrize("key", NOBODYS)
def test_what_a_dead_writer_left_has_its_time(root: Path, key: str) -> None:
    leave(root, key, LONG_S - 100)
    assert store_leftovers(str(root), RUN, is_own=True) == []
    leave(root, key, LONG_S + 100)
    assert store_leftovers(str(root), RUN, is_own=True) == [f"{key} is left over: nothing needs it"]
    is_shared = [] if not key.startswith("runs/") else [f"{key} is left over: nothing needs it"]
    assert store_leftovers(str(root), RUN, is_own=False) == is_shared


def test_what_a_damaged_manifest_needs_is_not_known(root: Path) -> None:
    leave(root, PACK, LONG_S + 100)
    newest = max(root.glob(f"runs/{RUN}/steps/*"))
    newest.write_bytes(newest.read_bytes()[:-1])
    assert store_leftovers(str(root), RUN, is_own=True) == []
