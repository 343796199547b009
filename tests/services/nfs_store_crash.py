"""A process on one NFS client that is killed in a save or a prune, and its successor on another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from checkpointing.storage import Storage
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store.store import Store
from tests.effort import every
from tests.faults import crashing
from tests.faults.crashing import Place
from tests.services.nfs_control import EXPORT, NFS, SECOND
from tests.services.nfs_store_calls import KillAt, storage
from tests.services.nfs_store_saves import run_forked
from tests.unit.checkpointing.store import saves

VERSION = "HPCKIT_TEST_NFS"
"""Variable: of NFS."""
SCENARIOS = ("killed_at_changes", "killed_at_calls")
_TTL_S = 600.0
_CHANGES_EVERY, _CALLS_EVERY = every(4), every(40)


def killed_at_changes() -> dict[str, int]:
    """Before a change of the store, which is also after the one before; how many there were. Which
    changes depends on the version of NFS, so that both together try twice as many."""
    populated = _populated()
    copy = MemoryStorage("memory://count")
    crashing.copied(populated, copy)
    count = len(crashing.changes(copy))
    jobs = (
        (str(n), partial(crashing.die_at, kill_at=n, when="before", ttl_s=_TTL_S))
        for n in range(_first(_CHANGES_EVERY), count, _CHANGES_EVERY)
    )
    return {"changes": count, "killed": _matrix("changes", populated, jobs)}


def killed_at_calls() -> dict[str, int]:
    """Before every n-th system call that changes something; how many there were."""
    populated = _populated()
    counting = KillAt(-1)
    root = NFS / "calls-count"
    _copy(populated, root)
    crashing.work(storage(root, counting), _TTL_S)

    def die(place: Place, kill_at: int) -> None:
        crashing.work(storage(Path(place.url), KillAt(kill_at)), _TTL_S)

    jobs = (
        (str(n), partial(die, kill_at=n))
        for n in range(_first(_CALLS_EVERY), counting.count, _CALLS_EVERY)
    )
    return {"calls": counting.count, "killed": _matrix("calls", populated, jobs)}


def _first(step: int) -> int:
    """So that versions 3 and 4.2 take turns."""
    return 0 if os.environ[VERSION] == "3" else step // 2


def _populated() -> MemoryStorage:
    populated = MemoryStorage("memory://before")
    crashing.populate(populated)
    return populated


def _copy(populated: Storage, root: Path) -> None:
    crashing.copied(populated, PosixStorage(str(root)))


def _matrix(
    folder: str, populated: Storage, jobs: Iterator[tuple[str, Callable[[Place], None]]]
) -> int:
    count = 0
    for name, job in jobs:
        place = f"{folder}/{name}"
        _copy(populated, NFS / place)
        code = run_forked(partial(job, Place(str(NFS / place), {})))
        assert code == -9, f"{place}: ended with {code}"
        try:
            _check(place)
        except AssertionError as error:
            raise AssertionError(f"{place}: {error}; {_listed(place)}") from error
        count += 1
    return count


def _check(place: str) -> None:
    other = SECOND / place
    crashing.check_at_once(PosixStorage(str(other)))
    for lease in (other / "leases").glob("*.lease"):
        long_ago = lease.stat().st_mtime - 2 * _TTL_S
        os.utime(lease, (long_ago, long_ago))
    crashing.check_after_all(PosixStorage(str(other)))
    store = Store.at(PosixStorage(str(NFS / place)))
    wrong = saves.problems(store) + crashing.leaks(store)
    assert not wrong, f"the dead one's machine sees {wrong}"


def _listed(place: str) -> str:
    """What there is, and what the clients see."""
    there = [str(p.relative_to(EXPORT / place)) for p in (EXPORT / place).rglob("*") if p.is_file()]
    seen = {
        str(client): [entry.key for entry in PosixStorage(str(client / place)).list("")]
        for client in (NFS, SECOND)
    }
    return f"there is {sorted(there)}, seen is {seen}"
