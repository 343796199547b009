"""Dumps the stacks of all threads of hung workers to the run directory."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from hpckit.ipc.process_environment import STACKS_SIGNAL
from hpckit.system.child_processes import rank_named

log = logging.getLogger(__name__)

PATIENCE_S = 3.0
"""Seconds for a worker to write its stacks, or for py-spy to read them."""
_POLL_S = 0.05
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
    _dump_by_workers({pid: path for pid, path in paths.items() if not _dump_by_py_spy(pid, path)})
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


def _dump_by_py_spy(pid: int, path: Path) -> bool:
    tool = shutil.which("py-spy")
    if tool is None:
        return False
    done = _run([tool, "dump", "--pid", str(pid)])
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
    deadline = time.monotonic() + PATIENCE_S
    while waiting and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        waiting = [pid for pid in waiting if _size(paths[pid]) == before[pid]]
    silent = [pid for pid, path in paths.items() if _size(path) == before[pid]]
    for pid in silent:
        with paths[pid].open("a") as file:
            file.write(f"process {pid} does not answer: it is {_state(pid)}\n")
    if len(silent) < len(paths):
        time.sleep(_POLL_S)  # for the rest of their output


def _request_dump(pid: int) -> bool:
    """Returns False if the process is gone."""
    try:
        os.kill(pid, STACKS_SIGNAL)
    except ProcessLookupError:
        return False
    return True


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
