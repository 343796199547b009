"""Injects a fault on the machine of its targets, where a drill runs it as `python -m
hpckit.faults.injection.process_faults RUN FAULT NUMBER [PERCENT SECONDS]`, with one of
`ProcessFault` and, for `SLOW`, a `Slowdown`.

Targets are found by the run and node in their environment, workers by their name. Only faults of
the checkpoint service hit a checkpoint service, which is to outlive the processes that other drills
kill.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

import psutil

from hpckit.faults.injection.failing_syscalls import CANNOT, UnsupportedFaultError, fail_syscalls
from hpckit.system.child_processes import AGENT_NAME, rank_name


class ProcessFault(StrEnum):
    """The faults of processes."""

    WORKER = "worker"
    """SIGKILL of the worker of one rank."""
    AGENT = "agent"
    """SIGKILL of the agent of one node."""
    NODE = "node"
    """SIGKILL of all processes of one node."""
    HANG = "hang"
    """SIGSTOP of the worker of one rank."""
    SLOW = "slow"
    """Slowdown of the worker of one rank, which is stopped for a share of the time."""
    SERVICE = "service"
    """SIGKILL of the checkpoint service of one node."""
    WORKER_TERM = "worker_term"
    AGENT_TERM = "agent_term"
    SERVICE_TERM = "service_term"
    """SIGTERM of the checkpoint service of one node."""
    AGENT_STOP = "agent_stop"
    """SIGSTOP of the agent of one node."""
    SERVICE_STOP = "service_stop"
    """SIGSTOP of the checkpoint service of one node, and SIGCONT after `STOPPED_S`."""
    FULL = "full"
    """Writes of the checkpoint service of one node to any file fail, for `FULL_S`."""
    ENOSPC = "enospc"
    EIO = "eio"
    """System calls by which the checkpoint service of one node uses its disk fail with this error,
    for `FULL_S`."""
    NAN = "nan"
    """A parameter of one rank becomes NaN; its worker has to handle `SIGNALS`."""
    MEMORY = "memory"
    """An allocation of one rank fails; its worker has to handle `SIGNALS`."""
    STALL = "stall"
    """One rank waits forever in its own code; its worker has to handle `SIGNALS`."""
    WRONG = "wrong"
    """One rank computes wrongly from now on; its worker has to handle `SIGNALS`."""
    SPIKE = "spike"
    """The loss of one rank's next samples is very large; its worker has to handle `SIGNALS`."""


SLOW_S, FULL_S, STOPPED_S = 10.0, 8.0, 8.0
SIGNALS = {
    ProcessFault.NAN: signal.SIGRTMIN + 1,
    ProcessFault.MEMORY: signal.SIGRTMIN + 2,
    ProcessFault.STALL: signal.SIGRTMIN + 3,
    ProcessFault.WRONG: signal.SIGRTMIN + 4,
    ProcessFault.SPIKE: signal.SIGRTMIN + 5,
}
"""Signals by which a worker is asked to inject a fault into itself."""
UNTIL_EOF = "HPCKIT_DRILL_UNTIL_EOF"
"""The variable with which a drill has this program end with its standard input, at the latest."""
_CYCLE_S = 0.2
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
"""The signals of faults; SIGKILL for those that are missing."""


@dataclass(frozen=True)
class Slowdown:
    """How much a rank is slowed down: by default to a tenth of the time."""

    percent: float = 900.0
    """How much longer what it computes takes, in percent."""
    seconds: float = SLOW_S

    @property
    def pauses(self) -> tuple[float, float]:
        """The seconds for which the slowed rank is stopped, and then runs, in turn. A slowdown of a
        few percent stops it for some milliseconds."""
        stopped_s = _CYCLE_S * self.percent / (100.0 + self.percent)
        return stopped_s, _CYCLE_S - stopped_s


def victims(run: str, fault: ProcessFault, number: int) -> list[psutil.Process]:
    """Return this user's processes on this machine that a fault of node or rank `number` hits."""
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
        parent = process.parent()  # a fork of it has the same name
        return parent is None or parent.name() != name
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return False


def inject_fault(
    run: str, fault: ProcessFault, number: int, slowdown: Slowdown | None = None
) -> list[int]:
    """Inject the fault and return the processes that it hit.

    Args:
        slowdown: of `SLOW`; None: the usual one.

    Raises:
        UnsupportedFaultError: this machine lacks what it needs.
    """
    hit = victims(run, fault, number)
    with _raising_signals():
        match fault:
            case ProcessFault.SLOW:
                _slow_down(hit, slowdown or Slowdown())
            case ProcessFault.FULL:
                _refuse_writes(hit)
            case ProcessFault.ENOSPC | ProcessFault.EIO:
                fail_syscalls([process.pid for process in hit], fault.name, FULL_S)
            case ProcessFault.SERVICE_STOP:
                _stop(hit)
            case _:
                _signal(hit, _SIGNAL.get(fault, signal.SIGKILL))
    return [process.pid for process in hit]


@contextmanager
def _raising_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end this process by an exception in the block, as Ctrl-C does, so
    that a process that it has stopped continues. A thread other than the main one gets none."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as below nohup
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _stop(processes: Sequence[psutil.Process]) -> None:
    _signal(processes, signal.SIGSTOP)
    try:
        time.sleep(STOPPED_S)
    finally:
        _signal(processes, signal.SIGCONT)


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # ended because another target died
            process.send_signal(number)


def _refuse_writes(processes: Sequence[psutil.Process]) -> None:
    """Make writes fail by a limit on the size of files: EFBIG, as on a disk that is full."""
    limits = []
    try:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                limits.append((process, process.rlimit(resource.RLIMIT_FSIZE)))
                process.rlimit(resource.RLIMIT_FSIZE, (0, limits[-1][1][1]))
        time.sleep(FULL_S)
    finally:
        for process, limit in limits:
            with suppress(psutil.NoSuchProcess):
                process.rlimit(resource.RLIMIT_FSIZE, limit)


def _slow_down(processes: Sequence[psutil.Process], slowdown: Slowdown) -> None:
    end_s = time.monotonic() + slowdown.seconds
    stopped_s, running_s = slowdown.pauses
    try:
        with suppress(psutil.NoSuchProcess):  # ended by another fault
            while processes and time.monotonic() < end_s:
                for number, pause_s in ((signal.SIGSTOP, stopped_s), (signal.SIGCONT, running_s)):
                    for process in processes:
                        process.send_signal(number)
                    time.sleep(pause_s)
    finally:
        _signal(processes, signal.SIGCONT)


def _end_at_eof() -> None:
    """End this process as SIGTERM does, once the drill that has started it is over."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: list[str]) -> int:
    """Run as a program. Exit status 1: there is no such process here; `CANNOT`: the fault cannot be
    injected here."""
    run, fault, number, *how = arguments
    if os.environ.get(UNTIL_EOF):
        threading.Thread(target=_end_at_eof, daemon=True).start()
    slowdown = Slowdown(*map(float, how)) if how else None
    try:
        hit = inject_fault(run, ProcessFault(fault), int(number), slowdown)
    except UnsupportedFaultError as error:
        print(error, file=sys.stderr)
        return CANNOT
    print(*hit)
    return 0 if hit else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
