"""Finding a node's service, or starting it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import checkpointing
from checkpointing.errors import ServiceError
from checkpointing.service.address import address, check_peer
from checkpointing.service.config import Config, dump
from checkpointing.service.wire import Wire

START_S = 60.0  # in which a service has to be there: opening a store may take that long


def connect(config: Config) -> Wire:
    """A connection to this node's service for the run, which is started if it is not there.

    Raises:
        ServiceError: it cannot be started; says why.
    """
    path, deadline_s = address(config.url, config.run, config.node), time.monotonic() + START_S
    while True:
        if (sock := _connect(path)) is not None:
            return Wire(sock)
        if time.monotonic() > deadline_s:
            raise ServiceError(f"no checkpoint service answers at {path} for {START_S:.0f} s")
        if not _start(config, path):
            time.sleep(0.05)  # somebody else is starting it, or one is just ending


def attach(path: Path) -> Wire | None:
    """A connection to the service that listens there, if one does."""
    sock = _connect(path)
    return Wire(sock) if sock is not None else None


def _connect(path: Path) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(path))
        check_peer(sock)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except BaseException:
        sock.close()
        raise
    return sock


def _start(config: Config, path: Path) -> bool:
    """Whether it is ready; False if there is another one.

    Raises:
        ServiceError: it is not, and why.
    """
    command = [sys.executable, "-m", "checkpointing.service", str(path)]
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
        out, err = process.communicate(dump(config), timeout=START_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ServiceError(f"the checkpoint service was not ready in {START_S:.0f} s") from None
    try:
        said = json.loads(out)
    except ValueError:
        said = {"ready": False, "error": err.strip() or f"exit status {process.returncode}"}
    if said["error"]:
        raise ServiceError(f"the checkpoint service cannot start: {said['error']}")
    return bool(said["ready"])


def _environment() -> dict[str, str]:
    """This process's, with this package found first."""
    here = str(Path(checkpointing.__file__).parents[1])
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != here]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, *others])}
