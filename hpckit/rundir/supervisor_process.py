"""Finds the supervisor's process on this machine by the run's records, and verifies it."""

from __future__ import annotations

import os
import socket
import time

import psutil

from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import holder

_LOADED_S = 1.0
"""Seconds within which the kernel loads the program of a process that was just started."""
_TICK_S = 0.005


class SupervisorError(RuntimeError):
    """Raised if the supervisor cannot be reached from this machine; says why."""


def find_supervisor(run: RunDir) -> psutil.Process | None:
    """Returns the process that holds the run lock, or None if there is none.

    Raises:
        SupervisorError: the process is on another machine, or is no supervisor.
    """
    owner = holder(run.lock)
    if owner is None:
        return None
    if owner.host != socket.gethostname():
        raise SupervisorError(f"{run.name} is held by {owner}: type this on {owner.host}")
    if (process := _own_process(owner.pid)) is None or not is_supervisor(
        _command_line(process), run
    ):
        raise SupervisorError(f"{run.name} is held by {owner}, which is not its supervisor")
    return process


def starting_process(run: RunDir) -> psutil.Process | None:
    """Returns submitit's process on this machine that starts the supervisor or waits for it."""
    for pid in reversed(run.job_numbers()):
        process = _own_process(pid)
        if process is not None and str(run.submitit) in _command_line(process):
            return process
    return None


def starting_since(run: RunDir) -> float | None:
    """Returns when the process of `starting_process` began, in seconds since the epoch; None: there
    is none."""
    process = starting_process(run)
    try:
        return None if process is None else process.create_time()
    except psutil.NoSuchProcess:  # it has ended meanwhile
        return None


def is_supervisor(words: list[str], run: RunDir) -> bool:
    """Returns whether a command line is that of the run's supervisor: submitit's, with its
    folder."""
    return "submitit.core._submit" in words and words[-1] == str(run.submitit)


def _own_process(pid: int) -> psutil.Process | None:
    """Returns process `pid` if it is this user's and alive."""
    try:
        process = psutil.Process(pid)
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        return process if is_alive and process.uids().real == os.getuid() else None
    except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError, OverflowError):
        return None


def _command_line(process: psutil.Process) -> list[str]:
    """Returns the words of the command line. They are there once the kernel has loaded the program,
    which on a busy machine may be some 10 ms after the process was started."""
    deadline = time.monotonic() + _LOADED_S
    try:
        while not (words := process.cmdline()) and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        return words
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return []
