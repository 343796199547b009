"""ministack: an S3 emulator from a Python package, where there is no Ceph, or as a second server.

It does all that AWS does with conditions and checksums, and speaks plain http only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slurm.devcluster.plan import free_ports
from tests.services.processes import Daemon, answers
from tests.services.s3 import REGION, S3Server

_KEY = "hpckit"
_SECRET = "hpckit-secret"


@dataclass(kw_only=True)
class MinistackServer(S3Server):
    """A running emulator; its objects lie in its memory."""

    daemon: Daemon = field(repr=False)

    def pause(self) -> None:
        """Make it accept connections and answer nothing."""
        self.daemon.pause()

    def resume(self) -> None:
        self.daemon.resume()


@contextmanager
def ministack(directory: Path) -> Iterator[MinistackServer]:
    """A new, empty emulator that logs to `directory`.

    Raises:
        ServiceError: it did not start.
    """
    (port,) = free_ports(1)
    env = {
        "BIND_HOST": "127.0.0.1",  # or it listens on every interface
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3",
        "S3_PERSIST": "0",
        "MINISTACK_REGION": REGION,
        "AUTH": "true",
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "AWS_SESSION_TOKEN": "",
        "LOG_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "ministack"]
    with Daemon.start("ministack", command, directory / "ministack.log", env) as daemon:
        daemon.wait_until(lambda: answers(port))
        yield MinistackServer(
            name="ministack",
            http=f"http://127.0.0.1:{port}",
            access_key=_KEY,
            secret_key=_SECRET,
            daemon=daemon,
        )
