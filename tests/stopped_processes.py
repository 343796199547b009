"""Stops processes by SIGSTOP and waits until they are stopped. kill(2) returns before the signal is
delivered, which on a busy machine takes until the process runs next."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

_PATIENCE_S = 120.0


def stop(pid: int) -> None:
    """Stop a process, and return when none of its threads can do anything more."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _PATIENCE_S
    while not is_stopped(pid):
        assert time.monotonic() < deadline, f"process {pid} is not stopped"
        time.sleep(0.005)


def is_stopped(pid: int) -> bool:
    """Whether all threads of the process are stopped, have ended, or are traced while stopped."""
    states = (_state(thread) for thread in Path(f"/proc/{pid}/task").iterdir())
    return all(state in "TtXZ" for state in states)


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"  # it has ended since
