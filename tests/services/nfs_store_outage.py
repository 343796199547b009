"""An NFS server that goes away in the middle of saves and comes back, on hard and soft mounts."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from checkpointing.errors import StoreError
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store.store import Store
from tests.effort import EFFORT
from tests.services import nfs_control
from tests.services.nfs_control import NFS, SECOND
from tests.services.nfs_store_calls import CaughtCalls, Once
from tests.services.nfs_store_crash import VERSION
from tests.services.nfs_store_saves import KEPT, big_tensors, check, populate, save

SCENARIOS = ("outage",)
# where in its save each of the processes is when the server goes: what it was about to call
_POINTS = {
    "lease": "create .*leases/",
    "folder": "mkdir .*packs/",
    "pack": "fsync .*packs/.*tmp",
    "name": "link .*packs/",
    "part": "fsync .*parts/.*tmp",
    "commit": "link .*steps/",
    "end": "unlink .*lease$",
}
_AWAY_S = 10.0
_AWAY_AT_MOST_S = 90.0  # on a slow machine it takes longer until the first soft save has failed
_SOFT = "soft,timeo=3,retrans=0"  # tenths of a second
_PATIENCE_S = 150.0


@big_tensors()
def outage() -> dict[str, dict[str, str]]:
    """Saves on the first client, which is mounted hard, and on the second, mounted soft: how each
    ended."""
    nfs_control.second_client(_SOFT)
    clients = {"hard": NFS, "soft": SECOND}
    points = _points()
    roots = {f"{kind}-{p}": clients[kind] / f"{kind}-{p}" for kind in clients for p in points}
    for root in roots.values():
        populate(root)
    ends = _saves_without_server(roots)
    nfs_control.second_client()
    for name in roots:
        _check_end(name, ends[name])
    return {kind: {point: ends[f"{kind}-{point}"] for point in points} for kind in clients}


def _points() -> list[str]:
    """With an effort of 1 every second one, so that versions 3 and 4.2 take turns, and the end."""
    first = 0 if os.environ[VERSION] == "3" else 1
    return [*_POINTS] if EFFORT > 1 else [*[*_POINTS][first:-1:2], "end"]


def _check_end(name: str, end: str) -> None:
    """Nothing is lost or torn, and the next save works."""
    is_there = check(SECOND / name, *KEPT, perhaps=3)
    assert is_there or end != "saved", f"{name}: it was saved and is not there"
    save(Store.at(PosixStorage(str(NFS / name))), 4)
    check(SECOND / name, *KEPT, 4, perhaps=3)


def _saves_without_server(roots: dict[str, Path]) -> dict[str, str]:
    """A save in each of the stores, all of which are at their points when the server goes."""
    context = multiprocessing.get_context("fork")
    there, gone, ends = context.Barrier(len(roots) + 1), context.Event(), context.SimpleQueue()

    def wait() -> None:
        there.wait(_PATIENCE_S)
        assert gone.wait(_PATIENCE_S), "the server was not stopped"

    def run(name: str) -> None:
        ends.put((name, _save(roots[name], Once(_POINTS[name.partition("-")[2]], wait))))

    processes = [context.Process(target=run, args=(name,)) for name in roots]
    for process in processes:
        process.start()
    there.wait(_PATIENCE_S)
    nfs_control.stop_server()
    gone.set()
    time.sleep(_AWAY_S)
    found = _until_one_failed(ends)
    nfs_control.start_server()
    found |= (ends.get() for _ in range(len(processes) - len(found)))
    for process in processes:
        process.join()
    return found


def _until_one_failed(ends: SimpleQueue[tuple[str, str]]) -> dict[str, str]:
    """The saves that have ended when one has failed, or at the latest after `_AWAY_AT_MOST_S`."""
    found: dict[str, str] = {}
    deadline = time.monotonic() + _AWAY_AT_MOST_S
    while all(end == "saved" for end in found.values()) and time.monotonic() < deadline:
        if ends.empty():
            time.sleep(0.1)
        else:
            found |= (ends.get(),)
    return found


def _save(root: Path, hook: Once) -> str:
    """Save a step; how that ended."""
    try:
        save(Store.at(PosixStorage(str(root), syscalls=CaughtCalls(hook))), 3)
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    assert hook.done, "the save never came to its point"
    return "saved"
