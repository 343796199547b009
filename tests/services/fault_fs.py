"""A folder whose file operations fail, wait or hang by rule (FUSE), and a disk that is small."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.services.processes import Daemon, MissingToolError, ServiceError, find_tools, tool

TOOLS = {"fusermount": "fuse3", "mount": "mount", "umount": "mount"}
PYTHON_PACKAGE = "python3-fusepy"
_PYTHON = "/usr/bin/python3"  # the one that Debian's packages are for
_ATTRIBUTE = "user.faults"

WRITES = (
    *("open_write", "create", "write", "truncate", "mkdir", "rmdir", "unlink"),
    *("rename", "link", "symlink", "chmod", "chown", "utimens"),
)


@dataclass(frozen=True)
class Rule:
    """Which operations meet with which fault. The first rule that is about one decides.

    Operations are named as FUSE does: the changing ones of WRITES, and getattr, readdir, open,
    read, fsync, fsyncdir, readlink, access, statfs. "open_write" is an open for writing of a file
    that is there, "flush" what close() waits for.
    """

    operations: Sequence[str]
    error: str | None = None  # name of an errno, such as "ENOSPC"
    delay_s: float = 0.0  # seconds before it is done, or fails
    hang: bool = False  # until other rules are set
    path: str = ""  # regular expression, found in the path below the mount point
    skip: int = 0  # how many go by unharmed first
    times: int | None = None  # how many meet with the fault; None for all that follow


NO_SPACE = Rule(("create", "mkdir", "write", "symlink"), error="ENOSPC")
QUOTA_AT_CLOSE = Rule(("flush",), error="EDQUOT")
READ_ONLY = Rule(WRITES, error="EROFS")


@dataclass(frozen=True)
class FaultFs:
    """A mounted file system; `path` is its root, `folder` the same without faults."""

    path: Path
    folder: Path

    def set_rules(self, *rules: Rule) -> None:
        """Put these rules, and no others, in force; what hangs goes on."""
        for rule in rules:
            if rule.error is not None and not hasattr(errno, rule.error):
                raise ValueError(f"{rule.error!r} is no errno's name: {rule}")
        data = json.dumps([asdict(rule) for rule in rules]).encode()
        os.setxattr(self.path, _ATTRIBUTE, data)

    @property
    def hits(self) -> list[int]:
        """How many operations met with the fault of each rule in force."""
        hits: list[int] = json.loads(os.getxattr(self.path, _ATTRIBUTE))
        return hits


@contextmanager
def fault_fs(directory: Path) -> Iterator[FaultFs]:
    """An empty faulty folder, made in `directory`.

    Raises:
        MissingToolError: fuse3 or python3-fusepy is not installed.
        ServiceError: this machine has no /dev/fuse for this user, or the server did not start.
    """
    fusermount = find_fuse()
    fs = FaultFs(directory / "faulty", directory / "folder")
    fs.path.mkdir()
    fs.folder.mkdir()
    program = str(Path(__file__).with_name("fuse_server.py"))
    command = [_PYTHON, program, str(fs.folder), str(fs.path)]
    with Daemon.start("fault_fs", command, directory / "fuse.log") as server:
        server.wait_until(lambda: os.path.ismount(fs.path))
        try:
            yield fs
        finally:
            fs.set_rules()
            tool([fusermount, "-u", "-z", str(fs.path)])


def find_fuse() -> str:
    """The path of fusermount.

    Raises:
        MissingToolError: fuse3 or python3-fusepy is not installed.
        ServiceError: this machine has no /dev/fuse for this user.
    """
    fusermount = find_tools(TOOLS)["fusermount"]
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise ServiceError("/dev/fuse is missing or not for this user: run as root, or mknod it")
    try:
        tool([_PYTHON, "-c", "import fusepy"])
    except (ServiceError, OSError) as error:
        raise MissingToolError(
            f"the system's Python has no fusepy ({error}); run as root: "
            f"apt-get install -y --no-install-recommends {PYTHON_PACKAGE}"
        ) from error
    return fusermount


@contextmanager
def small_disk(directory: Path, mib: int) -> Iterator[Path]:
    """A file system of `mib` MiB in memory, mounted below `directory`: what is more is ENOSPC.

    Raises:
        ServiceError: this user cannot mount.
    """
    path = directory / "small-disk"
    path.mkdir()
    tool(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(path)])
    try:
        yield path
    finally:
        tool(["umount", "--lazy", str(path)])
