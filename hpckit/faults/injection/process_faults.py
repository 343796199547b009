"""A real fault for a drill, on the machine where its victims are: run there as
`python -m hpckit.faults.injection.process_faults RUN FAULT NUMBER`, with one of `ProcessFault`.

Victims are known by the run and node in their environment, workers by their name. Checkpoint
services are spared by all faults but their own: they are there to outlive what a drill kills.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum

import psutil

from hpckit.faults.injection.failing_syscalls import CANNOT, UnsupportedFaultError, fail_syscalls
from hpckit.system.child_processes import AGENT_NAME, rank_name


class ProcessFault(StrEnum):
    """What befalls the run."""

    WORKER = "worker"
    """SIGKILL of the worker of one rank."""
    AGENT = "agent"
    """SIGKILL of the agent of one node."""
    NODE = "node"
    """SIGKILL of all processes of one node."""
    HANG = "hang"
    """SIGSTOP of the worker of one rank."""
    SLOW = "slow"
    """The worker of one rank runs a tenth of the time, for `SLOW_S`."""
    SERVICE = "service"
    """SIGKILL of the checkpoint service of one node."""
    WORKER_TERM = "worker_term"
    AGENT_TERM = "agent_term"
    SERVICE_TERM = "service_term"
    """SIGTERM of the same."""
    AGENT_STOP = "agent_stop"
    """SIGSTOP of the agent of one node."""
    SERVICE_STOP = "service_stop"
    """SIGSTOP of the checkpoint service of one node, and SIGCONT after `STOPPED_S`."""
    FULL = "full"
    """The checkpoint service of one node can write to no file, for `FULL_S`."""
    ENOSPC = "enospc"
    EIO = "eio"
    """System calls of the same by which it uses its disk fail with this error, for `FULL_S`."""
    NAN = "nan"
    """A parameter of one rank becomes NaN; its worker has to take `SIGNALS`."""
    MEMORY = "memory"
    """One rank gets no memory; its worker has to take `SIGNALS`."""


SLOW_S, FULL_S, STOPPED_S = 10.0, 8.0, 8.0
SIGNALS = {ProcessFault.NAN: signal.SIGRTMIN + 1, ProcessFault.MEMORY: signal.SIGRTMIN + 2}
"""By which a worker is told to do it to itself."""
_RUN_S, _STOP_S = 0.02, 0.18
_OF_DISK = (ProcessFault.FULL, ProcessFault.ENOSPC, ProcessFault.EIO)
_OF_SERVICE = (
    ProcessFault.SERVICE,
    ProcessFault.SERVICE_TERM,
    ProcessFault.SERVICE_STOP,
    *_OF_DISK,
)
_OF_AGENT = (ProcessFault.AGENT, ProcessFault.AGENT_TERM, ProcessFault.AGENT_STOP)
_SIGNAL = {
    **dict.fromkeys((ProcessFault.HANG, ProcessFault.AGENT_STOP), signal.SIGSTOP),
    **dict.fromkeys(
        (ProcessFault.WORKER_TERM, ProcessFault.AGENT_TERM, ProcessFault.SERVICE_TERM),
        signal.SIGTERM,
    ),
    **SIGNALS,
}
"""SIGKILL where there is none."""


def victims(run: str, fault: ProcessFault, number: int) -> list[psutil.Process]:
    """This user's processes on this machine that a fault of node or rank `number` is to hit."""
    return [process for process in psutil.process_iter() if _is_victim(process, run, fault, number)]


def _is_victim(process: psutil.Process, run: str, fault: ProcessFault, number: int) -> bool:
    try:
        if process.uids().real != os.getuid() or process.pid == os.getpid():
            return False
        env = process.environ()
        is_service = "HPCKIT_SERVICE" in env
        if env.get("HPCKIT_RUN") != run or is_service is not (fault in _OF_SERVICE):
            return False
        is_there = env.get("HPCKIT_NODE") == str(number)
        if fault in (ProcessFault.NODE, *_OF_SERVICE):
            return is_there
        name = process.name()
        is_it = is_there and name == AGENT_NAME if fault in _OF_AGENT else name == rank_name(number)
        if not is_it:
            return False
        parent = process.parent()  # a fork of it has its name, too
        return parent is None or parent.name() != name
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return False


def inject_fault(run: str, fault: ProcessFault, number: int) -> list[int]:
    """Do it; the processes that it hit.

    Raises:
        CannotError: this machine has not what it takes.
    """
    hit = victims(run, fault, number)
    match fault:
        case ProcessFault.SLOW:
            _slow_down(hit)
        case ProcessFault.FULL:
            _refuse_writes(hit)
        case ProcessFault.ENOSPC | ProcessFault.EIO:
            fail_syscalls([process.pid for process in hit], fault.name, FULL_S)
        case ProcessFault.SERVICE_STOP:
            _signal(hit, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            _signal(hit, signal.SIGCONT)
        case _:
            _signal(hit, _SIGNAL.get(fault, signal.SIGKILL))
    return [process.pid for process in hit]


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it died of another's death
            process.send_signal(number)


def _refuse_writes(processes: Sequence[psutil.Process]) -> None:
    """By the limit on the size of files: EFBIG, as of a disk that takes no more."""
    limits = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            limits.append((process, process.rlimit(resource.RLIMIT_FSIZE)))
            process.rlimit(resource.RLIMIT_FSIZE, (0, limits[-1][1][1]))
    time.sleep(FULL_S)
    for process, limit in limits:
        with suppress(psutil.NoSuchProcess):
            process.rlimit(resource.RLIMIT_FSIZE, limit)


def _slow_down(processes: Sequence[psutil.Process]) -> None:
    end_s = time.monotonic() + SLOW_S
    with suppress(psutil.NoSuchProcess):  # it ended, of another fault
        while processes and time.monotonic() < end_s:
            for number, pause_s in ((signal.SIGSTOP, _STOP_S), (signal.SIGCONT, _RUN_S)):
                for process in processes:
                    process.send_signal(number)
                time.sleep(pause_s)


def main(arguments: list[str]) -> int:
    """Exit status 1: there is no such process here; `CANNOT`: it cannot be done here."""
    run, fault, number = arguments
    try:
        hit = inject_fault(run, ProcessFault(fault), int(number))
    except UnsupportedFaultError as error:
        print(error, file=sys.stderr)
        return CANNOT
    print(*hit)
    return 0 if hit else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
