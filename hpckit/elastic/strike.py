"""A real fault for a drill, on the machine where its victims are: run there as
`python -m hpckit.elastic.strike RUN {worker,agent,node,hang} NUMBER`.

Victims are known by the run and node in their environment, workers by their name. Checkpoint
services are spared: they are there to outlive what a drill kills.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from enum import StrEnum

import psutil

from hpckit.run.processes import rank_name

_AGENT = ["-m", "hpckit.elastic.agent"]  # what follows Python in its command line


class Fault(StrEnum):
    """What befalls the run."""

    WORKER = "worker"
    """SIGKILL of the worker of one rank."""
    AGENT = "agent"
    """SIGKILL of the agent of one node."""
    NODE = "node"
    """SIGKILL of all processes of one node."""
    HANG = "hang"
    """SIGSTOP of the worker of one rank."""


def victims(run: str, fault: Fault, number: int) -> list[psutil.Process]:
    """This user's processes on this machine that a fault of node or rank `number` is to hit."""
    return [process for process in psutil.process_iter() if _is_victim(process, run, fault, number)]


def _is_victim(process: psutil.Process, run: str, fault: Fault, number: int) -> bool:
    try:
        if process.uids().real != os.getuid() or process.pid == os.getpid():
            return False
        env = process.environ()
        if env.get("HPCKIT_RUN") != run or "HPCKIT_SERVICE" in env:
            return False
        if fault in (Fault.NODE, Fault.AGENT):
            is_agent = process.cmdline()[1:] == _AGENT
            return env.get("HPCKIT_NODE") == str(number) and (is_agent or fault is Fault.NODE)
        if process.name() != rank_name(number):
            return False
        parent = process.parent()  # a fork of a worker has its name, too
        return parent is None or parent.name() != process.name()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return False


def strike(run: str, fault: Fault, number: int) -> list[int]:
    """Do it; the processes that it hit."""
    hit = victims(run, fault, number)
    for process in hit:
        with suppress(psutil.NoSuchProcess):  # it died of another's death
            process.send_signal(signal.SIGSTOP if fault is Fault.HANG else signal.SIGKILL)
    return [process.pid for process in hit]


def main(arguments: list[str]) -> int:
    """Exit status 1: there is no such process here."""
    run, fault, number = arguments
    hit = strike(run, Fault(fault), int(number))
    print(*hit)
    return 0 if hit else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
