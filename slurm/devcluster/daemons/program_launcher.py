"""Runs programs for a command: short ones to their end, and daemons that outlive it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slurm.devcluster import tools
from slurm.devcluster.daemons import process_records
from slurm.devcluster.daemons.processes import Process
from slurm.devcluster.daemons.wait_conditions import wait_until
from slurm.devcluster.errors import DevclusterError
from slurm.devcluster.files.folder import ClusterFolder
from slurm.devcluster.plan import ClusterPlan

_ROOT = Path(__file__).resolve().parents[3]
# Whatever is on the path of the user's Python, or in the folder it runs in, is left out
_MODULE = "import runpy, sys; sys.path.insert(0, sys.argv[1]); m = sys.argv[2]; del sys.argv[:2]; "
_MODULE += "runpy.run_module(m, run_name='__main__')"


def python(module: str, *arguments: str) -> list[str]:
    """Returns a command that runs a module of this project with the standard library alone."""
    return [sys.executable, "-I", "-S", "-c", _MODULE, str(_ROOT), module, *arguments]


@dataclass(frozen=True)
class Launcher:
    """Runs programs while the lock of a cluster's folder is held; the programs hold it, too."""

    folder: ClusterFolder
    lock: int  # file descriptor

    @property
    def env(self) -> dict[str, str]:
        """Returns the environment of programs of this cluster."""
        return {
            **tools.without_slurm(os.environ),
            "PATH": self._path,
            "SLURM_CONF": str(self.folder.slurm_conf),
            "MYSQL_UNIX_PORT": str(self.folder.database_socket),  # slurmdbd has no setting for it
        }

    @property
    def _path(self) -> str:
        plan = self.folder.plan
        chosen = ClusterPlan.read(plan).options.slurm if plan.exists() else None
        return tools.path_with(chosen)

    def run(self, *command: str, given: str = "", within_s: float = 30) -> str:
        """Runs a short program with `given` on its standard input; returns its standard output.

        Raises:
            DevclusterError: it failed, or took longer than `within_s` seconds.
        """
        done = self._done(command, given, within_s)
        if done.returncode != 0:
            raise DevclusterError(
                f"{' '.join(command)} failed with status {done.returncode}: "
                f"{(done.stderr or done.stdout).strip()}"
            )
        return done.stdout

    def attempt(self, *command: str, within_s: float = 30) -> str | None:
        """Runs a short program that may fail; returns its standard output, or None if it failed.

        Raises:
            DevclusterError: it took longer than `within_s` seconds.
        """
        done = self._done(command, "", within_s)
        return done.stdout if done.returncode == 0 else None

    def launch(self, name: str, command: Sequence[str], *, namespaces: bool = False) -> Process:
        """Starts a daemon and records it as `name`.

        Args:
            namespaces: it is the first process of namespaces of its own: network, processes,
                mounts, host name and shared memory.

        Raises:
            DevclusterError: it could not be started.
        """
        order = {
            "record": str(self.folder.record(name)),
            "log": str(self.folder.log(name)),
            "lock": self.lock,
            "namespaces": namespaces,
            "command": [shutil.which(command[0], path=self._path) or command[0], *command[1:]],
        }
        try:
            self.run(*python("slurm.devcluster.daemons.daemon_starter", json.dumps(order)))
        except DevclusterError as error:
            raise DevclusterError(f"{name} did not start: {error}") from error
        process = self.recorded(name)
        if process is None:
            raise DevclusterError(f"{name} ended as soon as it was started")
        return process

    def wait(
        self, name: str, ready: Callable[[], bool], within_s: float = 60, what: str = "ready"
    ) -> None:
        """Waits until the daemon `name` is ready.

        Raises:
            DevclusterError: it ended, or was not ready after `within_s` seconds.
        """
        if not wait_until(lambda: self.recorded(name) is None or ready(), within_s):
            raise DevclusterError(f"{name}: not {what} after {within_s:g} s")
        if self.recorded(name) is None:
            raise DevclusterError(f"{name} ended before it was {what}")

    def recorded(self, name: str) -> Process | None:
        """Returns the process `name`, if it runs."""
        return process_records.read(self.folder.record(name))

    def forget(self, name: str) -> None:
        self.folder.record(name).unlink(missing_ok=True)

    def _done(
        self, command: Sequence[str], given: str, within_s: float
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                env=self.env,
                input=given,
                capture_output=True,
                text=True,
                timeout=within_s,
                pass_fds=(self.lock,),
            )
        except subprocess.TimeoutExpired as error:
            raise DevclusterError(f"{command[0]} did not end within {within_s} s") from error
        except FileNotFoundError as error:
            raise DevclusterError(f"{command[0]} is not installed") from error


@contextmanager
def launcher(folder: ClusterFolder, *, new: bool = False) -> Iterator[Launcher]:
    """Locks the folder and yields a launcher for it.

    Args:
        new: the folder may be without a cluster.

    Raises:
        DevclusterError: see `ClusterFolder.locked`.
    """
    with folder.locked(new=new) as lock:
        yield Launcher(folder, lock)
