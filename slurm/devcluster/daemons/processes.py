"""Processes identified by pid and start time, so that a reused pid is not mistaken."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PARENT, _STARTED = 1, 19  # fields of /proc/PID/stat, counted from the state


@dataclass(frozen=True)
class Process:
    """One process of this machine."""

    pid: int
    started: int  # clock ticks after the machine's boot

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Returns the process that has this pid now; None if it has ended, reaped or not."""
        fields = _stat(pid)
        return None if fields is None else cls(pid, int(fields[_STARTED]))

    def is_alive(self) -> bool:
        return Process.of(self.pid) == self

    def send(self, number: signal.Signals) -> bool:
        """Sends it a signal; returns False if it has ended."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.is_alive():  # asked after the open: from here on, nothing can change
                return False
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True

    def ends_within(self, seconds: float) -> bool:
        """Waits for its end; returns whether it ended."""
        deadline = time.monotonic() + seconds
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def stop(self, within_s: float = 10) -> None:
        """Sends SIGTERM, and SIGKILL if it has not ended within `within_s` seconds."""
        self.send(signal.SIGTERM)
        if not self.ends_within(within_s):
            self.kill()

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end."""
        self.send(signal.SIGKILL)
        self.ends_within(10)

    def kill_with_children(self) -> None:
        """Sends SIGKILL to it and then to its descendants, and waits for their end."""
        below = self.below()
        self.kill()
        for process in below:
            process.kill()

    def below(self) -> list[Process]:
        """Returns its descendants."""
        children: dict[int, list[Process]] = {}
        for parent, process in everyone():
            children.setdefault(parent, []).append(process)
        found: list[Process] = []
        todo = [self.pid]
        while todo:
            next_ones = children.get(todo.pop(), [])
            found += next_ones
            todo += [process.pid for process in next_ones]
        return found

    def kill_all_below(self, within_s: float = 10) -> bool:
        """Sends SIGKILL to its descendants until there is none; returns whether that succeeded."""
        deadline = time.monotonic() + within_s
        while found := self.below():
            for process in found:
                process.send(signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def program(self) -> str:
        """Returns the name of its program, up to 15 bytes; empty if it has ended."""
        try:
            return Path(f"/proc/{self.pid}/comm").read_text(errors="replace").rstrip("\n")
        except (FileNotFoundError, ProcessLookupError):
            return ""

    def has_open(self, path: Path) -> bool:
        """Returns whether it has this file open, as far as this user may see."""
        try:
            return any(entry.readlink() == path for entry in Path(f"/proc/{self.pid}/fd").iterdir())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False


def everyone() -> Iterator[tuple[int, Process]]:
    """Yields (pid of the parent, process) for all processes that are alive."""
    for entry in Path("/proc").iterdir():
        fields = _stat(int(entry.name)) if entry.name.isdigit() else None
        if fields is not None:
            yield int(fields[_PARENT]), Process(int(entry.name), int(fields[_STARTED]))


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the program's name may hold anything
    return None if fields[0] in "ZX" else fields
