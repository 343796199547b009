"""The nodes' checkpoint services, as tests meet them: who runs, and services that are sabotaged."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from checkpointing.format.object_keys import new_session
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.service.client.service_lookup import attach
from checkpointing.service.config import ServiceConfig, dump
from checkpointing.service.protocol.socket_address import address, all_sockets
from checkpointing.service.snapshots import Generation

REPOSITORY = Path(__file__).parents[3]
END_S = 180.0
NOBODY = 1000  # a rank that no test has

_PROGRAM = """
import sys
from pathlib import Path
from checkpointing.service import service_lifetime
from checkpointing.service.__main__ import main
service_lifetime.UNUSED_S = {end_s}  # the imports of ranks may take a minute on a busy machine
{sabotage}
sys.exit(main(Path(sys.argv[1]), foreground=True))
"""
_HELD_AT = """
import os, time
import checkpointing.service.{module} as module
original = module.{function}

def held(*args, **options):
    while os.path.exists({gate!r}):
        open({reached!r}, "w").close()
        time.sleep(0.01)
    return original(*args, **options)

module.{function} = held
"""


def statuses() -> list[dict[str, Any]]:
    """What the services that are there say of themselves."""
    found = [_status(path) for path in all_sockets()]
    return [status for status in found if status is not None]


def pid_of(root: Path, run: str = "r") -> int:
    """The service of a run of this store, of which there is one."""
    (pid,) = [s["pid"] for s in statuses() if (s["root"], s["run"]) == (str(root), run)]
    return int(pid)


def kill_here(root: Path, run: str = "r") -> None:
    """The service of a run of this store on this node, with all that it has in memory."""
    status = _status(address(str(root), run))
    if status is not None:
        os.kill(status["pid"], signal.SIGKILL)


def wait_until_ended(root: Path | str) -> None:
    """Return when no service of this store is there any more.

    Raises:
        AssertionError: one stays.
    """
    deadline_s = time.monotonic() + END_S
    while left := [s for s in statuses() if s["root"] == str(root)]:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)


def on_disk(local: Path) -> list[Path]:
    """Snapshots that services have written there, by name; folders may vanish meanwhile."""
    return sorted(
        Path(folder, name)
        for folder, _, names in os.walk(local)
        for name in names
        if name.endswith(".snapshot")
    )


def kill_all() -> None:
    """End all services in the folder of this test session."""
    for path in all_sockets():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, suppress(OSError):
            sock.connect(str(path))  # a stopped one does not answer, but has a socket
            pid, _, _ = struct.unpack(
                "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            os.kill(pid, signal.SIGKILL)


@contextmanager
def sabotaged(root: Path, sabotage: str, run: str = "r", **options: Any) -> Iterator[int]:
    """This node's service for the run, with some lines of Python run first; its process.

    Args:
        options: of its `ServiceConfig`.
    """
    config = ServiceConfig(str(root), run, **options)
    program = [
        sys.executable,
        "-c",
        _PROGRAM.format(sabotage=sabotage, end_s=END_S),
        str(address(str(root), run)),
    ]
    with subprocess.Popen(
        program, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(dump(config))
        process.stdin.close()
        assert json.loads(process.stdout.readline()) == {"ready": True, "error": None}
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def kept(roots: Iterable[Path], run: str = "r") -> Iterator[None]:
    """These stores' services on this node live as long as the block, however many trainers come and
    go: each that is started takes about half a second of a core."""
    with ExitStack() as stack:
        for root in roots:
            made = Generation(new_session(), NOBODY + 1)
            client = ServiceClient(
                ServiceConfig(str(root), run),
                NOBODY,
                frozenset([NOBODY]),
                made,
                lambda message: None,
            )
            stack.callback(client.close)
        yield


@contextmanager
def elsewhere() -> Iterator[None]:
    """What is constructed in the block is on another node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCKIT_NODE", "another")
        yield


# For `sabotaged`: who comes while another trainer of its rank is alive waits no longer than this
IMPATIENT = """
from checkpointing.service.registry import snapshot_registry
snapshot_registry.HANDOVER_S = 2.0
"""


class Hold:
    """Saves stop at a function of the service until `release`."""

    def __init__(self, tmp: Path) -> None:
        self.gate, self.reached = tmp / "gate", tmp / "reached"

    def sabotage(self, where: tuple[str, str]) -> str:
        """For `sabotaged`: the module of the service, and the function in it."""
        module, function = where
        gate, reached = str(self.gate), str(self.reached)
        return _HELD_AT.format(module=module, function=function, gate=gate, reached=reached)

    def close(self) -> None:
        """From now on."""
        self.gate.touch()

    def wait(self) -> None:
        """Until a save stands there."""
        deadline_s = time.monotonic() + END_S
        while not self.reached.exists():
            assert time.monotonic() < deadline_s, f"no save has stopped within {END_S:g} s"
            time.sleep(0.01)

    def release(self) -> None:
        """Let them go on."""
        self.gate.unlink()


def _status(path: Path) -> dict[str, Any] | None:
    wire = attach(path)
    if wire is None:
        return None
    try:
        wire.send({"kind": "status", "number": 1})
        received = wire.receive()
        return received[0] if received is not None else None
    except ConnectionError:
        return None
    finally:
        wire.close()
