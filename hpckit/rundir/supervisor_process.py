"""The supervisor's process on this machine: found by what the run keeps, and proved to be it."""

from __future__ import annotations

import os
import socket

import psutil

from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import holder


class SupervisorError(RuntimeError):
    """The supervisor cannot be reached from here; says why."""


def find_supervisor(run: RunDir) -> psutil.Process | None:
    """The process that holds the run's lock; None if nobody does.

    Raises:
        SupervisorError: it is on another machine, or what holds the lock is no supervisor.
    """
    owner = holder(run.lock)
    if owner is None:
        return None
    if owner.host != socket.gethostname():
        raise SupervisorError(f"{run.name} is held by {owner}: type this on {owner.host}")
    if (process := _own(owner.pid)) is None or not is_supervisor(_words(process), run):
        raise SupervisorError(f"{run.name} is held by {owner}, which is no supervisor of it")
    return process


def starting_process(run: RunDir) -> psutil.Process | None:
    """The process of submitit on this machine that starts the supervisor, or watches over it."""
    for pid in reversed(run.job_numbers()):
        process = _own(pid)
        if process is not None and str(run.submitit) in _words(process):
            return process
    return None


def is_supervisor(words: list[str], run: RunDir) -> bool:
    """Whether a command line is that of the run's supervisor: submitit's, with its folder."""
    return "submitit.core._submit" in words and words[-1] == str(run.submitit)


def _own(pid: int) -> psutil.Process | None:
    """Process `pid`, if it is this user's and alive."""
    try:
        process = psutil.Process(pid)
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        return process if is_alive and process.uids().real == os.getuid() else None
    except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError, OverflowError):
        return None


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return []
