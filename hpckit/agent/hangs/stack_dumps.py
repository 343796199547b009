"""What workers that hang are doing: the stacks of their threads, in the run directory."""

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
"""Seconds for a worker to write its stacks, and for py-spy to read them."""
_POLL_S = 0.05
_CANNOT = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, "gone")
"""States in which a process takes no signal but SIGKILL."""


def write_stacks(pids: Iterable[int], folder: Path) -> list[Path]:
    """Have the stacks of these workers written down; the files.

    By py-spy, which needs nothing of the worker, where it is installed and may; else by the worker
    itself, if it is not stopped.

    Args:
        folder: where workers write theirs: the logs of the generation on this node.
    """
    paths = {pid: path for pid in pids if (path := stacks_path(folder, pid)) is not None}
    _by_themselves({pid: path for pid, path in paths.items() if not _by_py_spy(pid, path)})
    return [path for path in paths.values() if _size(path)]


def stacks_path(folder: Path, pid: int) -> Path | None:
    """Where the worker writes its stacks; None if it is gone."""
    if not psutil.pid_exists(pid):
        return None
    rank = rank_of(pid)
    return folder / f"rank{f'-{pid}' if rank is None else rank}.stacks"


def rank_of(pid: int) -> int | None:
    """That of a worker; None: it is none, or gone."""
    try:
        return rank_named(psutil.Process(pid).name())
    except psutil.Error:
        return None


def _by_py_spy(pid: int, path: Path) -> bool:
    tool = shutil.which("py-spy")
    if tool is None:
        return False
    done = _run([tool, "dump", "--pid", str(pid)])
    if done is None:
        return False
    with path.open("a") as file:
        file.write(f"process {pid}, {_state(pid)}\n{done}\n")
    return True


def _by_themselves(paths: Mapping[int, Path]) -> None:
    """All at once: none of them is to wait for another's patience."""
    before = {pid: _size(path) for pid, path in paths.items()}
    waiting = [pid for pid in paths if _state(pid) not in _CANNOT and _ask(pid)]
    deadline = time.monotonic() + PATIENCE_S
    while waiting and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        waiting = [pid for pid in waiting if _size(paths[pid]) == before[pid]]
    silent = [pid for pid, path in paths.items() if _size(path) == before[pid]]
    for pid in silent:
        with paths[pid].open("a") as file:
            file.write(f"process {pid} does not answer: it is {_state(pid)}\n")
    if len(silent) < len(paths):
        time.sleep(_POLL_S)  # for the rest of what they write


def _ask(pid: int) -> bool:
    """False: it is gone."""
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
    """As "sleeping", "stopped", "disk-sleep"."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
