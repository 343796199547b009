"""Saves on an NFS server that has no space left: what fails is a flush, or a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import pytest

from checkpointing.errors import StoreFullError
from checkpointing.retention import Last
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.store import Store
from tests.faults import crashing
from tests.services import nfs_control
from tests.services.nfs_control import EXPORT, NFS, SECOND
from tests.services.nfs_store_calls import CaughtCalls, Once
from tests.services.nfs_store_saves import KEPT, RUN, big_tensors, check, populate, save

SCENARIOS = ("over_quota", "disk_full")
_STEPS_OF_A_SAVE = ("leases/", "packs/", "parts/", "steps/")
Failed = dict[str, list[str]]  # by step of a save: calls that failed, as "fsync EDQUOT"


def over_quota() -> Failed:
    """The quota is used up just before one object of a save is written."""

    def use_up() -> None:
        nfs_control.set_quota(1)  # MiB, less than there is

    return _at_each_step("quota", use_up, lambda: nfs_control.set_quota(0))


def disk_full() -> Failed:
    """As `over_quota`, with the server's disk."""
    filler = EXPORT / "filler"

    def fill() -> None:
        with filler.open("wb") as file:
            for size in (1 << 20, 4096):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), file.tell(), size)
                        file.seek(size, os.SEEK_CUR)

    return _at_each_step("full", fill, filler.unlink)


@big_tensors()
def _at_each_step(name: str, fail: Callable[[], None], heal: Callable[[], None]) -> Failed:
    failed = {}
    for number, step in enumerate(_STEPS_OF_A_SAVE):
        place = f"{name}-{number}"
        populate(NFS / place)
        failed[step] = _save_without_space(place, step, fail)
        check(SECOND / place, *KEPT)
        heal()
        store = Store.at(PosixStorage(str(NFS / place)))
        save(store, 4)
        check(SECOND / place, *KEPT, 4)
        for _ in range(2):
            prune(store, RUN, [Last(1)], grace_s=0)
        check(SECOND / place, 4)
        left = crashing.leaks(store)
        assert not left, left
    return failed


def _save_without_space(place: str, step: str, fail: Callable[[], None]) -> list[str]:
    hook = Once(f"create .*/{step}", fail)
    calls = CaughtCalls(hook)
    with pytest.raises(StoreFullError, match=f"{step}.*make space"):
        save(Store.at(PosixStorage(str(NFS / place), syscalls=calls)), 3)
    assert hook.done
    failed = [(call.split()[0], number) for call, number in calls.failed]
    return [f"{name} {number}" for name, number in failed if number not in ("ENOENT", "EEXIST")]
