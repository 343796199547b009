"""The rendezvous store: a TCP key-value server in a child process of the supervisor.

It is a process of its own because the server is torch's and the supervisor never imports torch.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from hpckit.run.processes import kill_all, spawn_piped

_READY = "ready "
START_TIMEOUT = timedelta(seconds=30)


class StoreError(RuntimeError):
    """The store did not come up."""


class RendezvousStore:
    """Runs the server while the `with` block lasts; `host` and `port` say where.

    It imports torch first, which is not waited for before somebody asks for the port.
    """

    def __init__(self, host: str, env: Mapping[str, str], output: Path) -> None:
        self.host = host
        self._env = env
        self._output = output
        self._port: int | None = None

    def __enter__(self) -> RendezvousStore:
        self._start()
        return self

    def ensure(self) -> None:
        """Start the server anew if it has died; it may then be at another port."""
        if not self.alive():
            self.__exit__()
            self._start()

    @property
    def port(self) -> int:
        """Waits until it serves.

        Raises:
            StoreError: it does not come up.
        """
        if self._port is None:
            assert self._process.stdout is not None
            line = self._process.stdout.readline().decode()
            if not line.startswith(_READY):
                raise StoreError(
                    f"the rendezvous store did not come up on {self.host} (cluster.address): "
                    f"see {self._output}"
                )
            self._port = int(line.removeprefix(_READY))
        return self._port

    def _start(self) -> None:
        command = [sys.executable, "-m", "hpckit.elastic.store", self.host]
        self._process = spawn_piped(command, self._env, self._output)
        self._port = None

    def alive(self) -> bool:
        return self._process.poll() is None

    def __exit__(self, *_: object) -> None:
        kill_all([self._process])
        assert self._process.stdout is not None
        self._process.stdout.close()


def serve(host: str) -> None:
    """Serve on a free port of `host`, print it, and stay until killed.

    Raises:
        OSError: `host` is no address of this machine.
    """
    import torch.distributed as dist

    with socket.socket() as probe:  # TCPStore listens anywhere, then waits long for itself on host
        probe.bind((host, 0))
    server = dist.TCPStore(  # type: ignore[attr-defined]
        host, 0, is_master=True, wait_for_workers=False, timeout=START_TIMEOUT
    )
    print(f"{_READY}{server.port}", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    serve(sys.argv[1])
