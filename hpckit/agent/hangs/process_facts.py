"""What the kernel says about a process that may not answer: its state, what it waits for, its
stopped child processes, and its network connections that are not acknowledged."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpckit.hangs.hang_snapshot import ProcessState

MOST_CHILDREN = 4
"""Child processes that are named."""
RETRANSMISSIONS = 3
"""Number of unanswered retransmissions from which on a connection is named: a second or more."""
_PROC = Path("/proc")
_STATES = {
    "T": ProcessState.STOPPED,
    "t": ProcessState.STOPPED,
    "D": ProcessState.UNINTERRUPTIBLE,
    "Z": ProcessState.ENDED,
    "X": ProcessState.ENDED,
}
_WORDS = {
    ProcessState.STOPPED: "is stopped by a signal or a debugger",
    ProcessState.UNINTERRUPTIBLE: "waits in the kernel (state D)",
}
_ESTABLISHED = "01"


@dataclass(frozen=True)
class ProcessFacts:
    """What the kernel says about one process."""

    state: ProcessState
    cpu_s: float = 0.0
    """Seconds of CPU time that its main thread has used."""
    waits_in: str = ""
    """The function of the kernel in which it waits; empty: unknown, or it runs."""


def process_facts(pid: int) -> ProcessFacts:
    """Returns what the kernel says about a process."""
    try:
        text = (_PROC / f"{pid}/task/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ProcessFacts(ProcessState.ENDED)
    fields = text.rpartition(")")[2].split()
    state = _STATES.get(fields[0], ProcessState.ALIVE)
    ticks = int(fields[11]) + int(fields[12])
    return ProcessFacts(state, ticks / os.sysconf("SC_CLK_TCK"), _read(_PROC / f"{pid}/wchan"))


def _read(path: Path) -> str:
    """Returns the content of a file of /proc; empty if the kernel refuses it or has none."""
    try:
        text = path.read_text(errors="replace").strip()  # a long name may end within a character
    except OSError:
        return ""
    return "" if text == "0" else text


def children_by_parent() -> dict[int, list[int]]:
    """Returns the child processes of each process of this host."""
    found: dict[int, list[int]] = {}
    for pid in psutil.pids():
        match = re.search(r"\) \S (\d+)", _read(_PROC / f"{pid}/stat"))
        if match:
            found.setdefault(int(match[1]), []).append(pid)
    return found


def descendants(pid: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    """Yields the processes below `pid`, given those of `children_by_parent`."""
    for child in children.get(pid, ()):
        yield child
        yield from descendants(child, children)


def child_notes(pids: Iterable[int]) -> list[str]:
    """Returns a sentence about each child process that is stopped or waits in the kernel."""
    found = []
    for pid in pids:
        state = process_facts(pid).state
        if state in _WORDS:
            found.append(f"its child process {pid} ({name_of(pid)}) {_WORDS[state]}")
    return found[:MOST_CHILDREN]


def name_of(pid: int) -> str:
    """Returns the name of a process; empty if it has ended."""
    return _read(_PROC / f"{pid}/comm")


def connection_notes(pid: int) -> list[str]:
    """Returns a sentence about the connections of a process whose other sides acknowledge
    nothing."""
    inodes = set(_socket_inodes(pid))
    addresses: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        lines = _read(_PROC / f"{pid}/net/{table}").splitlines()[1:]
        for address, retransmissions, inode in _connections(lines):
            if inode in inodes and retransmissions >= RETRANSMISSIONS:
                addresses[address] = max(addresses.get(address, 0), retransmissions)
    return [
        f"its connection to {address} is not acknowledged ({times} retransmissions)"
        for address, times in sorted(addresses.items())[:MOST_CHILDREN]
    ]


def _socket_inodes(pid: int) -> Iterator[str]:
    try:
        links = list((_PROC / f"{pid}/fd").iterdir())
    except OSError:
        return
    for link in links:
        try:
            target = str(link.readlink())
        except OSError:  # it was closed meanwhile
            continue
        if target.startswith("socket:["):
            yield target[8:-1]


def _connections(lines: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    """Yields the address of the other side, the number of retransmissions and the inode of each
    established connection in lines of /proc/net/tcp."""
    for line in lines:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _ESTABLISHED:
            yield _address(fields[2]), int(fields[6], 16), fields[9]


def _address(text: str) -> str:
    """Returns an address of /proc/net/tcp, whose words of 32 bits are in the order of this
    machine, without its port."""
    digits = text.partition(":")[0]
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(words))
