"""The files of one cluster, all in one folder that only its user can enter."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm.devcluster.errors import DevclusterError

VARIABLE = "HPCKIT_DEVCLUSTER"  # the folder, where no command names one
_SOCKET_PATH = 107  # bytes that the kernel takes
_LOCK = "lock"
_FOLDERS = ("run", "log", "state", "spool", "database")
_FILES = (
    "cluster.json",
    "cluster.new",
    "slurm.conf",
    "slurmdbd.conf",
    "gres.conf",
    "cgroup.conf",
    "hosts",
    "munge.key",
)


@dataclass(frozen=True)
class ClusterFolder:
    """The paths of a cluster's files."""

    path: Path

    @classmethod
    def named(cls, path: Path | None) -> ClusterFolder:
        """Returns this folder; None: that of HPCKIT_DEVCLUSTER, else the default of the user.

        Raises:
            DevclusterError: the path is too long for the sockets in it, or not for slurm.conf.
        """
        chosen = path or Path(os.environ.get(VARIABLE) or Path.home() / ".hpckit-devcluster")
        folder = cls(chosen.absolute())
        if len(os.fsencode(folder.database_socket)) > _SOCKET_PATH:
            raise DevclusterError(f"{folder.path} is too long for a socket in it: name a shorter")
        if strange := {
            character for character in str(folder.path) if character in " \t#,=%[]\"'\\"
        }:
            raise DevclusterError(
                f"{folder.path}: slurm.conf takes no {' '.join(map(repr, sorted(strange)))} in a "
                "path: name another folder"
            )
        return folder

    @property
    def plan(self) -> Path:
        return self.path / "cluster.json"

    @property
    def slurm_conf(self) -> Path:
        return self.path / "slurm.conf"

    @property
    def hosts(self) -> Path:
        return self.path / "hosts"

    @property
    def key(self) -> Path:
        return self.path / "munge.key"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def logs(self) -> Path:
        return self.path / "log"

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def database(self) -> Path:
        return self.path / "database"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.sock"

    @property
    def database_socket(self) -> Path:
        return self.run / "database.sock"

    def record(self, name: str) -> Path:
        """Returns the path of the record of the process `name`; see `process_records`."""
        return self.run / f"{name}.json"

    def log(self, name: str) -> Path:
        """Returns the path of the log of the process `name`: its standard output and error."""
        return self.logs / f"{name}.out"

    def slurmd_log(self, node: str) -> Path:
        return self.logs / f"slurmd-{node}.log"

    def check_new(self) -> None:
        """Raises:
        DevclusterError: there is something in it.
        """
        if self.plan.exists():
            raise DevclusterError(
                f"{self.path} has a cluster, up or left over: take it down, or name another folder"
            )
        if there := self._strange():
            raise DevclusterError(
                f"{self.path} is not empty ({', '.join(there[:4])}): name a folder that is new"
            )
        if self.run.exists():
            raise DevclusterError(f"{self.path} has a cluster left over: take it down")

    def make(self) -> None:
        """Creates the folders in it."""
        self.path.chmod(0o700)
        for part in (self.run, self.logs, self.state, self.spool):
            part.mkdir(mode=0o700)

    def remove(self) -> list[str]:
        """Remove all that a cluster makes, and the folder; the names of what is there besides, and
        stays."""
        for part in _FOLDERS:
            if (self.path / part).exists():
                shutil.rmtree(self.path / part)
        for part in _FILES:
            (self.path / part).unlink(missing_ok=True)
        strange = self._strange()
        (self.path / _LOCK).unlink()
        if not strange:
            self.path.rmdir()
        return strange

    @contextmanager
    def locked(self, *, new: bool = False, within_s: float = 20) -> Iterator[int]:
        """Locks it against other commands; yields the file descriptor of the lock.

        Whoever inherits the descriptor holds the lock too, until it ends: what is half done when a
        command is killed is done, or has ended, before another one takes the lock.

        Args:
            new: it may be without a cluster, and is created if it does not exist.

        Raises:
            DevclusterError: there is no cluster in it, it cannot be made, or another command is at
                work for longer than `within_s` seconds.
        """
        path = self.path / _LOCK
        try:
            if new:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if new else 0), 0o600)
        except FileNotFoundError:
            raise DevclusterError(f"no cluster in {self.path}") from None
        except OSError as error:
            raise DevclusterError(f"{self.path} cannot be used: {error.strerror}") from error
        try:
            self._lock(fd, path, within_s)
            yield fd
        finally:
            os.close(fd)

    def _lock(self, fd: int, path: Path, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DevclusterError(
                        f"another command is at work in {self.path}: let it end, or kill it"
                    ) from None
            time.sleep(0.05)
        if not path.exists() or not os.path.samestat(os.fstat(fd), path.stat()):
            raise DevclusterError(f"no cluster in {self.path}: it was taken down a moment ago")

    def _strange(self) -> list[str]:
        """Returns the names of the files in it that no cluster makes."""
        if not self.path.exists():
            return []
        return sorted({entry.name for entry in self.path.iterdir()} - {*_FOLDERS, *_FILES, _LOCK})
