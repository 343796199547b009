"""Dumps the stacks of all threads of hung workers to the run directory."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from hpckit.ipc.process_environment import STACKS_SIGNAL
from hpckit.system.child_processes import rank_named

log = logging.getLogger(__name__)

PATIENCE_S = 3.0
"""Seconds for a worker to write its stacks, or for py-spy to read them."""
_POLL_S = 0.05
_AT_ONCE = 16
_LIBC = ctypes.CDLL(None, use_errno=True)
_TGKILL = {"x86_64": 234, "aarch64": 131}
"""Numbers of the system call by the machine; glibc has no function for it before 2.30."""
_UNRESPONSIVE_STATES = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, "gone")
"""States in which a process handles no signal but SIGKILL."""


def write_stacks(pids: Iterable[int], folder: Path) -> list[Path]:
    """Writes the stacks of these workers and returns the files.

    py-spy does it, which needs nothing of the worker, if it is installed and permitted; otherwise
    the worker itself does, unless it is stopped.

    Args:
        folder: where workers write their stacks: the logs of the generation on this node.
    """
    paths = {pid: path for pid in pids if (path := stacks_path(folder, pid)) is not None}
    with ThreadPoolExecutor(_AT_ONCE, "py-spy") as threads:
        is_done = dict(zip(paths, threads.map(_dump_by_py_spy, paths, paths.values()), strict=True))
    _dump_by_workers({pid: path for pid, path in paths.items() if not is_done[pid]})
    return [path for path in paths.values() if _size(path)]


def stacks_path(folder: Path, pid: int) -> Path | None:
    """Returns the path of the worker's stacks, or None if the worker is gone."""
    if not psutil.pid_exists(pid):
        return None
    rank = rank_of(pid)
    return folder / f"rank{f'-{pid}' if rank is None else rank}.stacks"


def rank_of(pid: int) -> int | None:
    """Returns the rank of a worker, or None if the process is no worker or is gone."""
    try:
        return rank_named(psutil.Process(pid).name())
    except psutil.Error:
        return None


def py_spy_dump(pid: int) -> str | None:
    """Returns the stacks of a process by py-spy; None: it is not installed, or not permitted."""
    tool = shutil.which("py-spy")
    return None if tool is None else _run([tool, "dump", "--pid", str(pid)])


def _dump_by_py_spy(pid: int, path: Path) -> bool:
    done = py_spy_dump(pid)
    if done is None:
        return False
    with path.open("a") as file:
        file.write(f"process {pid}, {_state(pid)}\n{done}\n")
    return True


def _dump_by_workers(paths: Mapping[int, Path]) -> None:
    """Has workers dump their own stacks, all at once, so that none waits for another's timeout."""
    before = {pid: _size(path) for pid, path in paths.items()}
    waiting = [
        pid for pid in paths if _state(pid) not in _UNRESPONSIVE_STATES and _request_dump(pid)
    ]
    begun_s = time.monotonic()
    is_repeated = False
    while waiting and time.monotonic() < begun_s + PATIENCE_S:
        time.sleep(_POLL_S)
        waiting = [pid for pid in waiting if _size(paths[pid]) == before[pid]]
        if not is_repeated and time.monotonic() > begun_s + PATIENCE_S / 2:
            is_repeated = True
            for pid in waiting:
                _ask_other_threads(pid)
    silent = [pid for pid, path in paths.items() if _size(path) == before[pid]]
    for pid in silent:
        with paths[pid].open("a") as file:
            file.write(f"process {pid} does not answer: it is {_state(pid)}\n")
    if len(silent) < len(paths):
        _wait_for_rest([path for pid, path in paths.items() if pid not in silent])


def _wait_for_rest(paths: Sequence[Path]) -> None:
    """Waits until files that processes write line by line grow no more."""
    before: list[int] = []
    end_s = time.monotonic() + PATIENCE_S
    while (now := [_size(path) for path in paths]) != before and time.monotonic() < end_s:
        before = now
        time.sleep(_POLL_S)


def _request_dump(pid: int) -> bool:
    """Returns False if the process is gone."""
    try:
        os.kill(pid, STACKS_SIGNAL)
    except ProcessLookupError:
        return False
    return True


def _ask_other_threads(pid: int) -> None:
    """Sends the signal to the other threads of a process whose main thread does not handle it, as
    when it waits in the kernel: any of them writes the stacks of all."""
    number = _TGKILL.get(os.uname().machine)
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            if int(thread.name) != pid and number is not None:
                _LIBC.syscall(number, pid, int(thread.name), int(STACKS_SIGNAL))


def _run(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("%s: %s", command[0], error)
        return None
    return done.stdout if done.returncode == 0 else None


def _state(pid: int) -> str:
    """Returns the state of a process, such as "sleeping", "stopped" or "disk-sleep"."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
