"""A storage that is changed for another one of the same place, and what it passes on."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpointing.service.checkpoint_service import CheckpointService
from checkpointing.service.config import Budget, ServiceConfig
from checkpointing.service.upload_bandwidth import BandwidthTokenBucket, ThrottledStorage
from checkpointing.storage import Storage, open_storage
from checkpointing.storage.forwarding_storage import RenewableStorage
from checkpointing.storage.interface import SupportsTemporaryRemoval
from checkpointing.storage.memory_storage import MemoryStorage

SECRET = "not-for-anybody"


class Closing(MemoryStorage):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_requests_go_to_the_new_one_and_the_old_one_ends_with_it() -> None:
    old, new = Closing("memory://old"), Closing("memory://new")
    storage = RenewableStorage(old)
    storage.put("packs/a", [b"1"])
    storage.renew(new)
    storage.put("packs/b", [b"2"])
    assert storage.create("c", b"3")
    storage.replace("c", b"4")
    assert (storage.get("c"), bytes(storage.get_range("packs/b", 0, 1))) == (b"4", b"2")
    storage.delete(["c"])
    assert [entry.key for entry in storage.list("")] == ["packs/b"]
    assert [entry.key for entry in old.list("")] == ["packs/a"]
    assert storage.url == new.url
    assert old.closed == 0, "something may be under way"
    storage.close()
    assert (old.closed, new.closed) == (1, 1)


def test_it_passes_on_all_that_a_storage_has() -> None:
    wanted = {name for name, _ in inspect.getmembers(Storage) if not name.startswith("_")}
    assert wanted <= set(dir(RenewableStorage))


@pytest.mark.parametrize(
    "wrap", [RenewableStorage, lambda s: ThrottledStorage(s, BandwidthTokenBucket(1e9))]
)
def test_what_dead_writers_left_is_swept_through_it(
    tmp_path: Path, wrap: Callable[[Storage], Storage]
) -> None:
    storage = wrap(open_storage(str(tmp_path)))
    storage.put("packs/a", [b"1"])
    left = tmp_path / "packs" / f".a.{'0' * 16}.tmp"
    left.write_bytes(b"half")
    os.utime(left, (1.0, 1.0))
    assert isinstance(storage, SupportsTemporaryRemoval)
    assert storage.sweep_temporaries(3600.0) == 1
    assert not left.exists()
    other = wrap(MemoryStorage("memory://x"))
    assert isinstance(other, SupportsTemporaryRemoval)
    assert other.sweep_temporaries(0.0) == 0


def s3(**options: Any) -> ServiceConfig:
    plain = {"endpoint": "http://127.0.0.1:9", "region": "us-east-1", "access_key_id": "key"}
    return ServiceConfig("s3://bucket/x", "r", {**plain, **options}, budget=Budget(cpu=1))


def test_a_service_takes_other_options_and_tells_no_value(caplog: pytest.LogCaptureFixture) -> None:
    service = CheckpointService(s3(secret_access_key="expired"))
    renewable = service._renewable
    before = renewable._storage
    try:
        with caplog.at_level(logging.INFO, "checkpointing"):
            service.configure(s3(secret_access_key="expired"))
            assert renewable._storage is before
            service.configure(s3(secret_access_key=SECRET))
            assert renewable._storage is not before
            assert service.config.options["secret_access_key"] == SECRET
            now = renewable._storage
            service.configure(s3(secret_access_key=SECRET, nonsense=SECRET))
            assert renewable._storage is now
        assert "other options of the store, which are used from now on" in caplog.text
        assert "new options of the store cannot be used: unknown option 'nonsense'" in caplog.text
        assert SECRET not in caplog.text
    finally:
        service.close()
