"""Programs on a real NFS: the kernel's server and client, in a user-mode Linux booted for them.

One boot takes some seconds and its one CPU is slow: it shows what NFS does, not how fast.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.services import uml
from tests.services.processes import ServiceError, find_tools

TOOLS = {
    **uml.TOOLS,
    "rpc.nfsd": "nfs-kernel-server",
    "mount.nfs": "nfs-common",
    "rpcbind": "rpcbind",
    "dmsetup": "dmsetup",
    "mkfs.ext4": "e2fsprogs",
    "ip": "iproute2",
}
_REPORT = "report.json"


@dataclass(frozen=True)
class Finished:
    """A command that ended, on an NFS that is gone."""

    returncode: int
    output: str  # standard output and errors
    seconds: dict[str, float]  # of "boot", "server" and "command"


def run_in_nfs(
    script: Path | Sequence[str],
    *,
    out: Path,
    version: str = "4.2",
    options: str = "hard",
    size_mib: int = 200,
    timeout_s: float = 300,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Run a Python script, or a command, with a new, empty NFS at /mnt/nfs.

    It runs as root in the repository, and sees this machine's files but cannot write them, except
    for those in `out`, which are at /mnt/out. `tests.services.nfs_control` makes the server fail.

    Args:
        out: an empty directory; the logs go there.
        version: "3", "4.0", "4.1" or "4.2".
        options: of the mount, as of mount(8).
        size_mib: MiB of the server's disk.
        timeout_s: of all, boot included.

    Raises:
        MissingToolError: not installed.
        ServiceError: it did not boot, or the command did not end in time; the text says what the
            console showed.
    """
    find_tools(TOOLS)
    config = {
        "command": [sys.executable, str(script)] if isinstance(script, Path) else list(script),
        "cwd": str(uml.REPOSITORY),
        "env": {"PYTHONPATH": str(uml.REPOSITORY), **(env or {})},
        "version": version,
        "options": options,
        "size_mib": size_mib,
    }
    path = out / "nfs.json"
    path.write_text(json.dumps(config))
    memory_mib = 512 + 3 * size_mib  # taken only as it is used
    uml.run_uml(
        "tests.services.nfs_guest",
        [str(path)],
        directory=out,
        memory_mib=memory_mib,
        timeout_s=timeout_s,
    )
    report = out / _REPORT
    if not report.exists():
        console = (out / uml.CONSOLE).read_text(errors="replace")
        raise ServiceError(f"no NFS: the guest did not get to its end: {console[:3000]}")
    done = json.loads(report.read_text())
    output = (out / "output").read_text(errors="replace")
    return Finished(done["status"], output, done["seconds"])
