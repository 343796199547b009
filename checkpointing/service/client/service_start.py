"""Connects to the service of this node, which is started if it is not running."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import checkpointing
from checkpointing.errors import ServiceError
from checkpointing.service.client.service_lookup import open_socket
from checkpointing.service.config import RECOVER_S, ServiceConfig, absolute, dump
from checkpointing.service.protocol.socket_address import address
from checkpointing.service.protocol.socket_frames import FrameSocket
from checkpointing.service.protocol.socket_lock import START, lock_socket

START_S = 60.0  # seconds within which a service has to be ready
# seconds between attempts while another process starts a service; up to _MAX_PAUSE_S while one ends
_PAUSE_S, _MAX_PAUSE_S = 0.05, 1.0


def connect(config: ServiceConfig) -> FrameSocket:
    """Return a connection to this node's service for the run, which is started if it is not
    running.

    Raises:
        ServiceError: the service cannot be started, and why.
    """
    config = absolute(config)
    path = address(config.url, config.run, config.node)
    # A service that was asked to end keeps its socket until it has ended.
    longest_s = _start_s(config) + config.drain_s
    deadline_s, pause_s = time.monotonic() + longest_s, _PAUSE_S
    while True:
        if (sock := open_socket(path)) is not None:
            return FrameSocket(sock)
        if time.monotonic() > deadline_s:
            raise ServiceError(
                f"no checkpoint service has answered at {path} for {longest_s:.0f} s"
            )
        with _exclusive_start(path) as is_ours:
            if is_ours and (sock := open_socket(path)) is not None:  # it was started in between
                return FrameSocket(sock)
            is_ready = is_ours and _start(config, path)
        if not is_ready:
            time.sleep(pause_s if is_ours else _PAUSE_S)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S) if is_ours else pause_s


@contextlib.contextmanager
def _exclusive_start(path: Path) -> Iterator[bool]:
    """Yield whether this process may start the service. One does at a time: of the ranks of a node,
    which all need it when they start, the others would start processes that end again.

    Raises:
        ServiceError: the lock cannot be made, and why.
    """
    lock = path.with_suffix(START)
    try:
        fd = lock_socket(lock)
    except OSError as error:
        raise ServiceError(f"the checkpoint service cannot start: {error}") from error
    if fd is None:
        yield False
        return
    try:
        yield True
    finally:
        lock.unlink(missing_ok=True)
        fcntl.flock(fd, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor
        os.close(fd)


def _start(config: ServiceConfig, path: Path) -> bool:
    """Start a service; return whether it is ready, False if another one is running.

    Raises:
        ServiceError: the service did not start, and why.
    """
    command = [sys.executable, "-P", "-m", "checkpointing.service", str(path)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        cwd="/",
        start_new_session=True,
        text=True,
    )
    try:
        out, err = process.communicate(dump(config), timeout=_start_s(config))
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the process group that it was started in
        process.communicate()
        raise ServiceError(
            f"the checkpoint service was not ready in {_start_s(config):.0f} s"
        ) from None
    try:
        said = json.loads(out)
    except ValueError:
        said = {"ready": False, "error": err.strip() or f"exit status {process.returncode}"}
    if said["error"]:
        raise ServiceError(f"the checkpoint service cannot start: {said['error']}")
    return bool(said["ready"])


def _start_s(config: ServiceConfig) -> float:
    """Return the seconds within which a service has to be ready: it first reads what lies on the
    node's disk."""
    return START_S + (RECOVER_S if config.local else 0.0)


def _environment() -> dict[str, str]:
    """Return the environment of this process with this package first on the import path."""
    here = str(Path(checkpointing.__file__).parents[1])
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != here]
    path = os.pathsep.join([here, *others])
    return {**os.environ, "PYTHONPATH": path, "HPCKIT_SERVICE": "checkpointing"}
