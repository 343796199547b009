"""Server processes that die with the tests, the tools that set them up, and what both need."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.stopped_processes import stop

_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
_TAIL = 2000  # characters of a log that an error message shows

# A program of its own and no preexec_fn: fork() in a process with threads may deadlock.
_BOUND = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):  # it ended before the call
    os.kill(os.getpid(), signal.SIGKILL)
os.execvp(sys.argv[2], sys.argv[2:])
"""

# Stays, to kill all of its command's process group when it is told to or its own parent ends.
_KEPT = """\
import ctypes, os, signal, subprocess, sys
held = [signal.SIGTERM]
signal.pthread_sigmask(signal.SIG_BLOCK, held)
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("whoever started this is gone")
child = subprocess.Popen(
    sys.argv[2:],
    start_new_session=True,
    preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, held),
)
def end(*_):
    os.killpg(child.pid, signal.SIGKILL)
    os._exit(1)
signal.signal(signal.SIGTERM, end)
signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
sys.exit(child.wait())
"""


class ServiceError(RuntimeError):
    """A server of the tests did not start, ended, or refused what it was told."""


class MissingToolError(ServiceError):
    """A program is not installed; the text says which Debian packages to install."""


def find_tools(tools: Mapping[str, str]) -> dict[str, str]:
    """The paths of `tools`, by name; system administrators' folders are searched too.

    Args:
        tools: the Debian package that has it, by name of the tool.

    Raises:
        MissingToolError: one or more are not installed.
    """
    found = {tool: shutil.which(tool, path=_PATH) for tool in tools}
    missing = [tool for tool, path in found.items() if path is None]
    if missing:
        packages = sorted({tools[tool] for tool in missing})
        raise MissingToolError(
            f"{', '.join(missing)} not installed; run as root: "
            f"apt-get install -y --no-install-recommends {' '.join(packages)}"
        )
    return {tool: path for tool, path in found.items() if path is not None}


def bound(command: Sequence[str]) -> list[str]:
    """`command`, to be started by this process and killed by the kernel when this one ends.

    The kernel watches the thread that starts it, so start servers from a thread that stays.
    """
    return _python(_BOUND, command)


def kept(command: Sequence[str]) -> list[str]:
    """As `bound`, for a command with children of its own; SIGTERM kills it and all of them."""
    return _python(_KEPT, command)


def _python(program: str, command: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program, str(os.getpid()), *command]


def tool(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60
) -> str:
    """Run a short program; its standard output.

    Raises:
        ServiceError: it failed or took longer than `timeout_s` seconds.
    """
    try:
        done = subprocess.run(
            bound(command),
            env={**os.environ, "PATH": _PATH, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise ServiceError(f"{command[0]} did not end within {timeout_s} s: {error.cmd}") from error
    if done.returncode != 0:
        raise ServiceError(
            f"{' '.join(command)} ended with status {done.returncode}: {done.stderr[-_TAIL:]}"
        )
    return done.stdout


def answers(port: int) -> bool:
    """Whether something accepts connections on `port` of loopback."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


@dataclass
class Daemon:
    """One server process. As a context manager it is killed and reaped at the end."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    _killing: signal.Signals = signal.SIGKILL

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        *,
        children: bool = False,
    ) -> Daemon:
        """Start `command` in a session of its own, its output appended to the file `log`.

        Say so if it has `children`: they end with it, and it cannot be paused.
        """
        with log.open("ab") as sink:
            process = subprocess.Popen(
                kept(command) if children else bound(command),
                env={**os.environ, "PATH": _PATH, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        return cls(name, process, log, signal.SIGTERM if children else signal.SIGKILL)

    def wait_until(self, ready: Callable[[], bool], within_s: float = 180) -> None:
        """Wait for `ready`.

        Raises:
            ServiceError: the process ended, or was not ready after `within_s` seconds.
        """
        deadline = time.monotonic() + within_s
        while not ready():
            status = self.process.poll()
            if status is not None:
                raise ServiceError(f"{self.name} ended with status {status}: {self._tail()}")
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} not ready after {within_s} s: {self._tail()}")
            time.sleep(0.02)

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP): connections are still accepted, nothing is answered."""
        stop(self.process.pid)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and reap."""
        self.process.send_signal(self._killing)
        self.process.wait()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-_TAIL:] or "(no output)"
