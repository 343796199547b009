"""Disks and servers that fail while a store is used: what passes is tried again, what does not is
one clear error, and no checkpoint is lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from checkpointing.errors import (
    DamagedError,
    StoreAccessError,
    StoreError,
    StoreFullError,
)
from checkpointing.format.object_keys import SaveId
from checkpointing.retention import Last
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.store import catalog
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_sweep import sweep
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from tests.faults.crashing import Place, copied, leaks, opened
from tests.services import faults
from tests.services.fault_fs import NO_SPACE, QUOTA_AT_CLOSE, READ_ONLY, FaultFs, Rule
from tests.services.fixtures import FaultyS3
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.saves import Values

RUN = "a"
QUICK = {"timeout_s": 2.0}  # options of a client whose requests are soon sent again
IMPATIENT = {"budget_s": 4.0}  # of one that soon gives up
PASSING = [faults.SLOW_DOWN, faults.INTERNAL_ERROR, faults.Reset(), faults.LoseReply()]
STEPS_OF_A_SAVE = ("leases/", "packs/", "parts/", "steps/")  # of a save, in its order


def _values(step: int) -> Values:
    return {"model/w": step, "optim/m": 100 + step}


def _save(store: Store, step: int) -> SaveId:
    with Session(store, RUN) as session:
        return saves.save(session, [RunChunkIndex(store, RUN)], step, _values(step))


def _check(store: Store, *steps: int) -> None:
    """These checkpoints are there, whole and as they were."""
    assert saves.problems(store) == []
    found = catalog.committed(store, RUN)[0]
    assert sorted(f.stored.save.step for f in found) == sorted(steps)
    for one in found:
        read = saves.contents(Checkpoint(store, one.stored))
        assert read == saves.expected(_values(one.stored.save.step))


@pytest.fixture
def on_disk(faulty_folder: FaultFs) -> Store:
    """A store with steps 1 and 2 on a file system that can fail."""
    store = Store.open(faulty_folder.path / "store", create=True)
    for step in (1, 2):
        _save(store, step)
    return store


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        (NO_SPACE, StoreFullError),
        (QUOTA_AT_CLOSE, StoreFullError),
        (READ_ONLY, StoreAccessError),
        (Rule(("fsync",), error="EIO"), StoreError),
        (Rule(("link",), error="EACCES"), StoreAccessError),
    ],
    ids=["full", "quota", "read-only", "fsync fails", "forbidden"],
)
@pytest.mark.parametrize("where", STEPS_OF_A_SAVE)
def test_a_disk_that_fails_loses_nothing(
    where: str, rule: Rule, error: type[StoreError], on_disk: Store, faulty_folder: FaultFs
) -> None:
    fails_there = Rule(rule.operations, error=rule.error, path=where)
    faulty_folder.set_rules(fails_there)
    with pytest.raises(error, match=where.rstrip("/")):
        _save(on_disk, 3)
    faulty_folder.set_rules()
    _check(on_disk, 1, 2)
    _save(on_disk, 4)
    prune(on_disk, RUN, [Last(2)], grace_s=0)
    _check(on_disk, 2, 4)


def test_an_fsync_that_fails_once_is_done_again_with_a_new_file(
    on_disk: Store, faulty_folder: FaultFs
) -> None:
    faulty_folder.set_rules(Rule(("fsync",), error="EIO", path="packs/", times=1))
    _save(on_disk, 3)
    assert faulty_folder.hits == [1]
    _check(on_disk, 1, 2, 3)


def test_a_full_disk_can_be_pruned_once_there_is_a_little_space(small_disk: Path) -> None:
    store = Store.open(small_disk / "store", create=True)
    for step in (1, 2, 3):
        _save(store, step)
    filler = small_disk / "filler"
    _fill(filler)
    with pytest.raises(StoreFullError):
        _save(store, 4)
    with pytest.raises(StoreFullError):
        prune(store, RUN, [Last(1)], grace_s=0)
    _check(store, 1, 2, 3)
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - (64 << 10))
    prune(store, RUN, [Last(1)], grace_s=0)
    _check(store, 3)
    assert leaks(store) == []
    _save(store, 4)


def _fill(path: Path) -> None:
    """Leave no block of a disk free."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.fixture(scope="module")
def in_memory() -> MemoryStorage:
    """A store with steps 1 and 2."""
    storage = MemoryStorage("memory://faults")
    store = Store.at(storage, create=True)
    for step in (1, 2):
        _save(store, step)
    return storage


@pytest.fixture
def in_s3(faulty_s3: FaultyS3, in_memory: MemoryStorage) -> Place:
    """The same behind the proxy."""
    with opened(Place(faulty_s3.direct.url, faulty_s3.direct.options)) as storage:
        copied(in_memory, storage)
    return Place(faulty_s3.place.url, {**faulty_s3.place.options, **QUICK})


def _check_in_s3(server: FaultyS3, *steps: int) -> None:
    """Past the proxy, with all that is left over swept away."""
    with opened(Place(server.direct.url, server.direct.options)) as storage:
        store = Store.at(storage)
        sweep(store, grace_s=0)
        _check(store, *steps)


@pytest.mark.parametrize("fault", PASSING, ids=str)
def test_requests_that_fail_once_are_sent_again(
    fault: faults.Fault, in_s3: Place, faulty_s3: FaultyS3
) -> None:
    with opened(in_s3) as storage:
        store = Store.at(storage)
        rules = [
            faulty_s3.proxy.inject(fault, method="PUT", key=key, times=1) for key in STEPS_OF_A_SAVE
        ]
        _save(store, 3)
        assert [rule.hits for rule in rules] == [1] * len(rules)
    _check_in_s3(faulty_s3, 1, 2, 3)


def test_an_upload_that_breaks_off_is_sent_again(in_s3: Place, faulty_s3: FaultyS3) -> None:
    with opened(in_s3) as storage:
        store = Store.at(storage)
        rule = faulty_s3.proxy.inject(faults.ResetUpload(50), method="PUT", key="packs/", times=2)
        _save(store, 3)
        assert rule.hits == 2
    _check_in_s3(faulty_s3, 1, 2, 3)


@pytest.mark.parametrize(
    "fault",
    [faults.ResetDownload(20), faults.Truncate(20), faults.FlipByte(20), faults.Hang(30)],
    ids=str,
)
def test_a_download_that_breaks_is_done_again(
    fault: faults.Fault, in_s3: Place, faulty_s3: FaultyS3
) -> None:
    with opened(in_s3) as storage:
        store = Store.at(storage)
        rule = faulty_s3.proxy.inject(fault, method="GET", key="packs/", times=1)
        _check(store, 1, 2)
        assert rule.hits == 1


def test_a_download_that_is_always_damaged_never_reaches_a_tensor(
    in_s3: Place, faulty_s3: FaultyS3
) -> None:
    with opened(in_s3) as storage:
        store = Store.at(storage)
        faulty_s3.proxy.inject(faults.FlipByte(20), method="GET", key="packs/")
        found = catalog.newest_first(store, RUN)[0]
        with pytest.raises(DamagedError, match="do not match their hash"):
            saves.contents(Checkpoint(store, found.stored))
    _check_in_s3(faulty_s3, 1, 2)


@pytest.mark.parametrize(
    ("key", "fault", "error"),
    [
        ("packs/", faults.EXPIRED_TOKEN, StoreAccessError),
        ("steps/", faults.EXPIRED_TOKEN_AWS, StoreAccessError),
        ("leases/", faults.ACCESS_DENIED, StoreAccessError),
        ("packs/", faults.Answer(403, "QuotaExceeded"), StoreFullError),
        ("steps/", faults.SLOW_DOWN, StoreError),
        ("packs/", faults.Reset(), StoreError),
    ],
    ids=["expired", "expired at AWS", "denied", "quota", "always slow", "always reset"],
)
def test_what_does_not_pass_is_one_error(
    key: str, fault: faults.Fault, error: type[StoreError], in_s3: Place, faulty_s3: FaultyS3
) -> None:
    with opened(Place(in_s3.url, {**in_s3.options, **IMPATIENT})) as storage:
        store = Store.at(storage)
        faulty_s3.proxy.inject(fault, method="PUT", key=key)
        with pytest.raises(error, match=key.rstrip("/")) as raised:
            _save(store, 3)
        assert in_s3.options["secret_access_key"] not in str(raised.value)
        faulty_s3.proxy.clear()
        _save(store, 4)
    _check_in_s3(faulty_s3, 1, 2, 4)


@pytest.mark.parametrize(
    "broken",
    [
        lambda proxy: proxy.inject(faults.LoseReply(), method="PUT", key="tombs/", times=1),
        lambda proxy: proxy.inject(faults.LoseReply(), method="POST", key="delete", times=3),
        lambda proxy: proxy.inject(faults.LoseReply(), method="DELETE", times=3),
        lambda proxy: proxy.inject(faults.SLOW_DOWN, method="GET", key="list", times=3),
        lambda proxy: proxy.inject(faults.Reset(), skip=5, times=3),
    ],
    ids=["tomb", "bulk delete", "delete", "list", "anything"],
)
def test_a_prune_on_a_bad_line_removes_what_it_should(
    broken: Callable[[faults.Rules], faults.Injection], in_s3: Place, faulty_s3: FaultyS3
) -> None:
    with opened(in_s3) as storage:
        store = Store.at(storage)
        broken(faulty_s3.proxy)
        assert len(prune(store, RUN, [Last(1)], grace_s=0).removed) == 1
    _check_in_s3(faulty_s3, 2)
