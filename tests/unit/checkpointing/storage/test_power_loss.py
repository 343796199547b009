"""At every point where a machine can stop, each object is whole or absent, and there if it was
said to be."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.errors import StoreError
from checkpointing.storage.interface import Storage
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.storage.retry import StorageRetryPolicy
from tests.effort import times
from tests.services.power_loss import LossyDisk, PowerLossError

ROOT = "/scratch/me/store"
KEYS = ("packs/aa/1.pack", "packs/ab/2.pack", "lease")
SCALE = 1000  # bytes that each byte of a step stands for, so that some are more than a block
AT_ONCE = StorageRetryPolicy(first_s=0.0, most_tries=5)

Step = tuple[str, str, bytes]  # operation, key, content
UNCHANGING = "list"  # the operation that lists the key's folder


def storage_on(disk: LossyDisk) -> PosixStorage:
    """A storage that writes most of the objects of `a_step` past the page cache."""
    return PosixStorage(ROOT, policy=AT_ONCE, syscalls=disk, direct_from=SCALE + 1)


class Ledger:
    """What each key may hold after a power cut."""

    def __init__(self) -> None:
        self.may: dict[str, set[bytes | None]] = {key: {None} for key in KEYS}

    def begin(self, step: Step) -> None:
        operation, key, data = step
        if operation != UNCHANGING:
            self.may[key] |= {None if operation == "delete" else data}

    def end(self, step: Step, holds: bool) -> None:
        operation, key, data = step
        if operation == UNCHANGING:
            return
        if holds:
            self.may[key] = {None if operation == "delete" else data}
        else:
            self.may[key] -= {None, data}  # another content, and that one is durable

    def check(self, storage: Storage) -> None:
        for key, contents in self.may.items():
            assert content(storage, key) in contents, key


def content(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.get(key)
    except FileNotFoundError:
        return None


def do(storage: Storage, step: Step) -> bool:
    operation, key, data = step
    if operation == "create":
        return storage.create(key, data)
    if operation == UNCHANGING:
        storage.list(key[: key.rfind("/") + 1])
    elif operation == "delete":
        storage.delete([key])
    elif operation == "put" and content(storage, key) is None:
        storage.put(key, [data[:2], b"", data[2:]])
    else:
        storage.replace(key, data)
    return True


def run(disk: LossyDisk, steps: list[Step], ledger: Ledger) -> None:
    storage = storage_on(disk)
    try:
        for step in steps:
            ledger.begin(step)
            ledger.end(step, do(storage, step))
    except PowerLossError:
        pass


def a_step() -> st.SearchStrategy[Step]:
    operations = st.sampled_from(("put", "create", "replace", "delete", UNCHANGING))
    contents = st.binary(min_size=1, max_size=9).map(lambda data: data * SCALE)
    return st.tuples(operations, st.sampled_from(KEYS), contents)


@settings(max_examples=times(150), deadline=None)
@given(st.lists(a_step(), min_size=1, max_size=5), st.integers(0, 120), st.randoms())
def test_a_power_cut_at_any_call(steps: list[Step], stop_at: int, random: Random) -> None:
    disk, ledger = LossyDisk(), Ledger()
    disk.stop_at = stop_at
    run(disk, steps, ledger)
    after = disk.power_cut(random)
    ledger.check(storage_on(after))


@settings(max_examples=times(150), deadline=None)
@given(
    st.lists(a_step(), min_size=1, max_size=3),
    st.lists(a_step(), min_size=1, max_size=3),
    st.integers(0, 60),
    st.randoms(),
)
def test_a_power_cut_after_another_process_was_killed(
    first: list[Step], second: list[Step], stop_at: int, random: Random
) -> None:
    """What a dead process left half done must not make the work of a later one less durable."""
    disk, ledger = LossyDisk(), Ledger()
    disk.stop_at = stop_at
    run(disk, first, ledger)
    disk.kill()
    run(disk, second, ledger)
    ledger.check(storage_on(disk))
    ledger.check(storage_on(disk.power_cut(random)))


@settings(max_examples=times(150), deadline=None)
@given(
    st.lists(a_step(), min_size=1, max_size=3),
    st.sampled_from(("fsync", "writev", "close", "link", "rename", "open_dir")),
    st.integers(0, 6),
    st.sampled_from((errno.EIO, errno.ESTALE, errno.ENOSPC)),
    st.randoms(),
)
def test_an_error_of_any_call_and_then_a_power_cut(
    steps: list[Step], verb: str, skip: int, number: int, random: Random
) -> None:
    disk, ledger = LossyDisk(), Ledger()
    disk.fail = fails_once(verb, skip, number)
    storage = storage_on(disk)
    for step in steps:
        ledger.begin(step)
        try:
            holds = do(storage, step)
        except StoreError:
            continue  # in doubt: old or new
        ledger.end(step, holds)
    ledger.check(storage_on(disk.power_cut(random)))


def fails_once(verb: str, skip: int, number: int) -> Callable[[str], None]:
    left = [skip]

    def fail(call: str) -> None:
        if call.startswith(f"{verb} "):
            left[0] -= 1
            if left[0] == -1:
                raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("operation", ["put", "create", "replace"])
def test_the_order_of_calls(operation: str) -> None:
    disk = LossyDisk()
    do(storage_on(disk), (operation, "packs/aa/1.pack", b"data"))
    publish = "rename" if operation == "replace" else "link"
    calls = [call for call in disk.calls if call.startswith((publish, "fsync", "create", "close"))]
    final = calls.index(f"{publish} {ROOT}/packs/aa/1.pack")
    temporary = next(call for call in calls if call.startswith("create")).split()[1]
    assert calls.index(f"fsync {temporary}") < calls.index(f"close {temporary}") < final
    assert final < len(calls) - 1 - calls[::-1].index(f"fsync {ROOT}/packs/aa")


def folders_synced(disk: LossyDisk, key: str) -> list[str]:
    """Returns the folders that are fsynced while a storage that has just been opened lists the
    folder of `key` and creates an object of that key."""
    storage = storage_on(disk)
    storage.replace("clock", b"")  # as whoever opens a store
    disk.calls.clear()
    storage.list(key[: key.rfind("/") + 1])
    storage.create(key, b"data")
    synced = [call.removeprefix("fsync ") for call in disk.calls if call.startswith("fsync ")]
    return [path.removeprefix(f"{ROOT}/") for path in synced if not path.endswith(".tmp")]


ALL_FOLDERS = [ROOT, "runs", "runs/a", "runs/a/owners"]


def test_a_folder_with_an_object_is_durable_when_it_is_listed() -> None:
    disk = LossyDisk()
    assert folders_synced(disk, "runs/a/owners/1") == ALL_FOLDERS
    assert folders_synced(disk, "runs/a/owners/2") == ALL_FOLDERS[-1:]
    # one of which nothing was listed but a folder above
    assert folders_synced(disk, "runs/a/steps/1") == [*ALL_FOLDERS[:-1], "runs/a/steps"]


@pytest.mark.parametrize("last", ["mkdir", "create", "writev", "fsync"])
def test_a_folder_that_a_dead_process_left_without_an_object_is_made_durable(last: str) -> None:
    """It may have died between creating the folder and making its name durable."""
    disk = LossyDisk()

    def stop(call: str) -> None:
        if call.startswith(last) and "/owners" in call:
            disk.stop_at = len(disk.calls)

    disk.fail = stop
    with pytest.raises(PowerLossError):
        storage_on(disk).create("runs/a/owners/1", b"data")
    disk.kill()
    disk.fail = lambda call: None
    assert folders_synced(disk, "runs/a/owners/2") == ALL_FOLDERS


def test_a_root_that_a_user_has_moved_is_made_durable() -> None:
    disk = LossyDisk()
    storage_on(disk).create("runs/a/owners/1", b"data")
    storage = storage_on(disk)
    disk.calls.clear()
    storage.list("runs/a/owners/")
    storage.create("runs/a/owners/2", b"data")
    above = ROOT.rpartition("/")[0]
    assert next(call for call in disk.calls if call.startswith("fsync ")) == f"fsync {above}"


def test_the_simulator_loses_what_was_not_made_durable() -> None:
    """Without any fsync, some cut loses the object and some cut tears it."""

    class Careless(LossyDisk):
        def fsync(self, fd: int) -> None:
            pass

    disk = Careless()
    storage_on(disk).put("lease", [b"content"])
    found = {content(storage_on(disk.power_cut(Random(n))), "lease") for n in range(400)}
    assert {None, b"content"} < found
