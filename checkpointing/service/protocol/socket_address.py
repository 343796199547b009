"""Where a node's services listen: at sockets in a folder that only the user can access."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from blake3 import blake3

from checkpointing.errors import ServiceError
from checkpointing.format.object_keys import check_run
from checkpointing.service.private_folder import is_private

SOCKET = ".sock"
MAX_PATH = 107  # bytes, size of sockaddr_un.sun_path without its zero


def folder() -> Path:
    """Return the user's folder for sockets, which is created if it is missing: HPCKIT_RUNTIME_DIR,
    hpckit/ in XDG_RUNTIME_DIR, or /tmp/hpckit-<uid>; its path is short enough for a socket's name.

    Raises:
        ServiceError: it belongs to another user, or is open to others.
    """
    path = _chosen()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ServiceError(f"cannot use {path} for sockets: {error}") from error
    _check(path)
    return path


def address(url: str, run: str, node: str | None = None) -> Path:
    """Return the path of the socket of the service for a run of a store on this node.

    Args:
        node: this node's name, where several nodes are simulated on one machine; None: HPCKIT_NODE
            or the host name.

    Raises:
        ServiceError: a socket cannot be there; the message says why.
        ValueError: `run` is not a plain name.
    """
    path = folder() / f"{service_key(url, run, node)}{SOCKET}"
    if len(os.fsencode(path)) > MAX_PATH:
        raise ServiceError(
            f"{path} is too long for a socket: set HPCKIT_RUNTIME_DIR to a shorter path"
        )
    return path


def service_key(url: str, run: str, node: str | None = None) -> str:
    """Return the key that names the files of the service for a run of a store on this node; raises
    as `address`."""
    node = node or os.environ.get("HPCKIT_NODE") or socket.gethostname()
    key = blake3("\0".join([url, check_run(run), node]).encode()).hexdigest()[:16]
    return f"{shown(run)}-{key}"


def shown(run: str) -> str:
    """Return the part of a run's name that the names of its sockets contain."""
    return run[:24]


def all_sockets() -> list[Path]:
    """Return all sockets in the folder, of services alive or dead. Creates nothing.

    Raises:
        ServiceError: as `folder`.
    """
    path = _chosen()
    if not path.is_symlink() and not path.exists():
        return []
    _check(path)
    return sorted(path.glob(f"*{SOCKET}"))


def check_peer(sock: socket.socket) -> None:
    """Check that the other side of a connection belongs to this user.

    Raises:
        ServiceError: it belongs to another user.
    """
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    if uid != os.getuid():
        raise ServiceError(f"process {pid} of user {uid} is at the other end and is refused")


def _chosen() -> Path:
    if chosen := os.environ.get("HPCKIT_RUNTIME_DIR"):
        return Path(chosen).absolute()  # the service itself runs in another working directory
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime).absolute() / "hpckit"
    return Path(f"/tmp/hpckit-{os.getuid()}")


def _check(path: Path) -> None:
    try:
        is_mine = is_private(path)
    except OSError as error:
        raise ServiceError(f"cannot use {path} for sockets: {error}") from error
    if not is_mine:
        raise ServiceError(
            f"{path} must be a directory of user {os.getuid()} with mode 0700 (not a link): "
            "remove it, or set HPCKIT_RUNTIME_DIR to one"
        )
