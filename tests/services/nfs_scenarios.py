"""What writers see on an NFS that fails; run inside, under `run_in_nfs`.

`python -m tests.services.nfs_scenarios NAME...` prints one JSON object: for each scenario the steps
of a write and how each ended, "ok" or the name of an errno.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.services import nfs_control
from tests.services.nfs_control import EXPORT, NFS

MIB = bytes(1 << 20)
Steps = list[tuple[str, str]]


def attempt(steps: Steps, name: str, action: Callable[[], object]) -> bool:
    """Do one step, note how it ended; whether it went well."""
    try:
        action()
    except OSError as error:
        steps.append((name, errno.errorcode[error.errno or 0]))
        return False
    steps.append((name, "ok"))
    return True


def write(path: Path, mib: int, before: Callable[[], None] = lambda: None) -> Steps:
    """Open, do what comes `before` it, write `mib` times 1 MiB until that fails, fsync, close."""
    steps: Steps = []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    before()

    def fill() -> None:
        for _ in range(mib):
            os.write(fd, MIB)

    attempt(steps, "write", fill)
    attempt(steps, "fsync", lambda: os.fsync(fd))
    attempt(steps, "close", lambda: os.close(fd))
    return steps


def full() -> Steps:
    steps = write(NFS / "full", 60)
    (NFS / "full").unlink()
    while ("fsync", "ok") not in write(NFS / "full", 1):  # the server gives space back in its time
        (NFS / "full").unlink()
        time.sleep(0.1)
    return steps


def quota() -> Steps:
    nfs_control.set_quota(8)
    steps = write(NFS / "quota", 12)
    (NFS / "quota").unlink()
    nfs_control.set_quota(0)
    return steps + write(NFS / "no-quota", 12)


def outage() -> Steps:
    """Begin a write, stop the server before it is flushed, start it again while fsync waits."""
    steps: Steps = []
    with (NFS / "outage").open("xb", buffering=0) as file:
        file.write(MIB)
        nfs_control.stop_server()
        is_back = threading.Event()

        def come_back() -> None:
            is_back.set()  # before it is: the fsync may end while the rest of the start goes on
            nfs_control.start_server()

        back = threading.Timer(1, come_back)
        back.start()
        attempt(steps, "fsync", lambda: os.fsync(file.fileno()))
        steps.append(("server", "back" if is_back.is_set() else "away"))
        back.join()
    size = (EXPORT / "outage").stat().st_size
    return [*steps, ("bytes", str(size))]


def soft_outage() -> Steps:
    """As `outage`, for a soft mount, and the server stays away."""
    steps: Steps = []
    with (NFS / "outage").open("xb", buffering=0) as file:
        file.write(MIB)
        nfs_control.stop_server()
        attempt(steps, "fsync", lambda: os.fsync(file.fileno()))
        nfs_control.start_server()
    return steps


def removed() -> Steps:
    """Somebody removes the file that is being written, on the server."""
    return write(NFS / "removed", 1, (EXPORT / "removed").unlink)


def two_clients() -> Steps:
    steps: Steps = []
    other = nfs_control.second_client()
    (NFS / "made-here").write_bytes(b"1")
    steps.append(("read there", (other / "made-here").read_text()))
    attempt(steps, "create there", lambda: (other / "made-here").open("xb"))
    same = NFS.stat().st_dev == other.stat().st_dev
    return [*steps, ("devices", "one" if same else "two")]


def broken_disk() -> Steps:
    steps = write(NFS / "broken", 1, nfs_control.break_disk)
    nfs_control.heal_disk()
    return steps


SCENARIOS: dict[str, Callable[[], Steps]] = {
    "full": full,
    "quota": quota,
    "outage": outage,
    "soft_outage": soft_outage,
    "removed": removed,
    "two_clients": two_clients,
    "broken_disk": broken_disk,
}


if __name__ == "__main__":
    print(json.dumps({name: SCENARIOS[name]() for name in sys.argv[1:]}))
