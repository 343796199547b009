"""The machine under a benchmark: stolen processor time, cores, warm memory and the page cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil

NOTABLE = 0.03
"""Share of stolen time from which seconds that were measured are not usable."""
MARK = "HPCKIT_BENCHMARK"  # variable that processes of one benchmark have in common
_STAT = Path("/proc/stat")
_STEAL = 7  # in the line of all processors: proc_stat(5)
_SUMMED = 8  # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user


def _ticks() -> list[int]:
    return [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1 : _SUMMED + 1]]


_ticks_at_start = _ticks()


def steal() -> float:
    """Returns the share of the processors' time that the host of this virtual machine gave to
    others since this process started, and prints a warning if it is notable."""
    spent = [now - before for now, before in zip(_ticks(), _ticks_at_start, strict=True)]
    share = spent[_STEAL] / max(sum(spent), 1)
    if share > NOTABLE:
        print(
            f"this machine's host gave {share:.0%} of the processors' time to others during the"
            " measurement: seconds measured here are too high",
            file=sys.stderr,
        )
    return share


def tree_cpu_s() -> float:
    """Returns the processor seconds of this process and of all that it has started."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks[pid] for pid in mine) / os.sysconf("SC_CLK_TCK")


def keep_to(cores: set[int]) -> None:
    """Pins all threads that this process has now, and those that they start, to these cores."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), cores)


@contextmanager
def starting_on(cores: set[int]) -> Iterator[None]:
    """Pins the threads and processes that this thread starts in the block to these cores; the
    thread itself returns to its own cores after the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def processor_s() -> float:
    """Returns the processor time of this process and of those that it has started, in seconds. A
    service that is nobody's child any longer is known by its environment, so `MARK` must be in that
    of this process before."""
    used = psutil.Process().cpu_times()
    total = float(used.user + used.system + used.children_user + used.children_system)
    for other in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if other.pid != os.getpid() and other.environ().get(MARK) == os.environ[MARK]:
                times = other.cpu_times()
                total += times.user + times.system
    return total


def touch(nbytes: int) -> None:
    """Makes sure that the machine has memory behind that many free bytes.

    A virtual machine may have to fetch memory that was free for some seconds from its host, page by
    page at 1 to 2 s per GiB. Without this, the arm that runs after a removal of files is fast.
    Every arm that takes memory or writes into the page cache calls this just before its timing
    starts.
    """
    np.ones(nbytes, np.uint8)


def shared_bytes() -> int:
    """Returns the bytes of shared memory that this process has mapped and allocated."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if "RssShmem" in line)


def forget(folder: Path) -> None:
    """Drops all files in a folder and below it from the page cache."""
    os.sync()  # dirty pages would stay in the cache
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
