"""For scripts under `run_in_nfs`: where things are, and how to make the server and its disk fail.

Nothing here starts a process: its copies of files on NFS would be closed, and so flushed, on the
way, which hangs while the server is away.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

NFS = Path("/mnt/nfs")  # the mounted file system
SECOND = Path("/mnt/second")  # the same by another client, after `second_client`
EXPORT = Path("/mnt/export")  # the same as it lies on the server
CONTROL = Path("/run/nfs-control")


class ControlError(RuntimeError):
    """The guest could not do what it was asked for."""


def stop_server() -> None:
    """The server is gone; a hard mount waits for it, a soft one gives up."""
    _ask("stop_server")


def start_server() -> None:
    """The server is back, with what it had; clients of version 4 have ten seconds for claims."""
    _ask("start_server")


def break_disk() -> None:
    """Every write to the server's disk fails with EIO from now on."""
    _ask("break_disk")


def heal_disk() -> None:
    """The disk takes writes again; what was lost stays lost."""
    _ask("heal_disk")


def set_quota(mib: int) -> None:
    """All files together may have `mib` MiB: what goes beyond is EDQUOT. 0 for no limit."""
    _ask("set_quota", mib)


def second_client(options: str = "") -> Path:
    """Mount the file system as another machine would; where it is. Once more: mounts it anew.

    Args:
        options: of the mount, as of mount(8), which come after those of `run_in_nfs`.
    """
    _ask("second_client", options)
    return SECOND


def lose_disk() -> None:
    """The server comes back without its disk: what it exports is the empty folder below."""
    _ask("lose_disk")


def find_disk() -> None:
    """The server comes back with its disk, and all that was on it."""
    _ask("find_disk")


def _ask(name: str, *arguments: int | str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(CONTROL))
        connection.sendall(json.dumps([name, *arguments]).encode() + b"\n")
        error = json.loads(connection.makefile().readline())
    if error:
        raise ControlError(f"{name}: {error}; see the console's log")
