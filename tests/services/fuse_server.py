"""A FUSE file system that passes everything on to a folder, and fails as it is told to.

`python3 fuse_server.py FOLDER MOUNT_POINT`, run by the system's Python, which has the Debian
package python3-fusepy. Its rules are set by the extended attribute "user.faults" of its root: a
JSON list of what `fault_fs.Rule` holds. The same attribute read says how often each rule was hit.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fusepy  # type: ignore[import-not-found,unused-ignore]

ATTRIBUTE = "user.faults"
_STAT = ("atime", "ctime", "gid", "mode", "mtime", "nlink", "size", "uid", "ino", "blocks", "dev")


class Faults:
    """The rules in force, and how many operations each has matched and hit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self.replace([])

    def replace(self, rules: list[dict[str, Any]]) -> None:
        """Put `rules` in force; what hangs by an old one goes on."""
        with self._lock:
            self._rules = rules
            self._matched = [0] * len(rules)
            self._hits = [0] * len(rules)
            self._changed.notify_all()

    def hits(self) -> list[int]:
        with self._lock:
            return list(self._hits)

    def meet(self, names: set[str], path: str) -> None:
        """Let the operation that has these `names` wait or fail, if a rule says so.

        Raises:
            fusepy.FuseOSError: of the rule.
        """
        with self._lock:
            rule = self._next(names, path)
            if rule is None:
                return
            if rule["hang"]:
                rules = self._rules
                self._changed.wait_for(lambda: self._rules is not rules)
        time.sleep(rule["delay_s"])
        if rule["error"] is not None:
            raise fusepy.FuseOSError(getattr(errno, rule["error"]))

    def _next(self, names: set[str], path: str) -> dict[str, Any] | None:
        for i, rule in enumerate(self._rules):
            if names.isdisjoint(rule["operations"]) or not re.search(rule["path"], path):
                continue
            self._matched[i] += 1
            turn = self._matched[i] - rule["skip"]
            if turn > 0 and (rule["times"] is None or turn <= rule["times"]):
                self._hits[i] += 1
                return rule
        return None


class FaultyFolder(fusepy.Operations):  # type: ignore[misc]
    """The operations; each may meet with a fault first."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._faults = Faults()

    def __call__(self, operation: str, path: str, *arguments: Any) -> Any:
        if not hasattr(self, operation):
            raise fusepy.FuseOSError(errno.ENOSYS)
        names = {operation}
        if operation == "open" and arguments[0] & (os.O_WRONLY | os.O_RDWR):
            names.add("open_write")
        self._faults.meet(names, path)
        method: Callable[..., Any] = getattr(self, operation)
        return method(path, *arguments)

    def _at(self, path: str) -> Path:
        return Path(self._folder + path)

    def setxattr(self, path: str, name: str, value: bytes, _flags: int, _position: int = 0) -> int:
        if (path, name) != ("/", ATTRIBUTE):
            raise fusepy.FuseOSError(errno.ENOTSUP)
        self._faults.replace(json.loads(value))
        return 0

    def getxattr(self, path: str, name: str, _position: int = 0) -> bytes:
        if (path, name) != ("/", ATTRIBUTE):
            raise fusepy.FuseOSError(errno.ENODATA)
        return json.dumps(self._faults.hits()).encode()

    def getattr(self, path: str, _fh: int | None = None) -> dict[str, Any]:
        found = self._at(path).lstat()
        return {f"st_{name}": getattr(found, f"st_{name}") for name in _STAT}

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    def readdir(self, path: str, _fh: int) -> list[str]:
        return [".", "..", *(entry.name for entry in self._at(path).iterdir())]

    def mkdir(self, path: str, mode: int) -> None:
        self._at(path).mkdir(mode)

    def rmdir(self, path: str) -> None:
        self._at(path).rmdir()

    def unlink(self, path: str) -> None:
        self._at(path).unlink()

    def rename(self, old: str, new: str) -> None:
        self._at(old).rename(self._at(new))

    def link(self, target: str, source: str) -> None:
        os.link(self._at(source), self._at(target))

    def symlink(self, target: str, source: str) -> None:
        self._at(target).symlink_to(source)

    def readlink(self, path: str) -> str:
        return str(self._at(path).readlink())

    def chmod(self, path: str, mode: int) -> None:
        self._at(path).chmod(mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.lchown(self._at(path), uid, gid)

    def utimens(self, path: str, times: tuple[float, float] | None = None) -> None:
        os.utime(self._at(path), times)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags & ~os.O_DIRECT)

    def create(self, path: str, mode: int, _info: object = None) -> int:
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, _path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, _path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, _fh: int | None = None) -> None:
        os.truncate(self._at(path), length)

    def flush(self, _path: str, _fh: int) -> None:
        """close() of a file: only a rule can make it fail."""

    def fsync(self, _path: str, _data_only: int, fh: int) -> None:
        os.fsync(fh)

    def fsyncdir(self, _path: str, _data_only: int, _fh: int) -> None:
        """Of a folder: only a rule can make it fail."""

    def release(self, _path: str, fh: int) -> None:
        os.close(fh)

    def access(self, path: str, mode: int) -> None:
        if not os.access(self._at(path), mode):
            raise fusepy.FuseOSError(errno.EACCES)


if __name__ == "__main__":
    # no timeouts: no answer may come from a cache, past the rules
    fusepy.FUSE(
        FaultyFolder(os.path.realpath(sys.argv[1])),
        sys.argv[2],
        foreground=True,
        big_writes=True,
        attr_timeout=0,
        entry_timeout=0,
        auto_unmount=True,
        use_ino=True,
    )
