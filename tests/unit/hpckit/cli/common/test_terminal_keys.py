"""Single keys of a real terminal, and what becomes of it while a shell has stopped the program."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hpckit.cli.common.terminal_keys import terminal_key_reader

READER = """
from hpckit.cli.common.terminal_keys import terminal_key_reader
with terminal_key_reader() as read:
    print("ready", flush=True)
    while (key := read(600)) != "q":
        print(f"key {key!r}", flush=True)
"""
SHELL = """
import fcntl, os, signal, subprocess, sys, termios
def has_echo():
    return bool(termios.tcgetattr(0)[3] & termios.ECHO)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it gives the terminal away, and takes it
reader = subprocess.Popen([sys.executable, "-c", sys.argv[1]], process_group=0)
os.tcsetpgrp(0, reader.pid)
_, status = os.waitpid(reader.pid, os.WUNTRACED)
print("stopped", os.WIFSTOPPED(status), has_echo(), flush=True)
os.tcsetpgrp(0, reader.pid)
os.kill(reader.pid, signal.SIGCONT)
print("ended", reader.wait(), has_echo(), flush=True)
"""


@contextmanager
def terminal(*command: str) -> Iterator[tuple[Callable[[bytes], None], Callable[[str], str]]]:
    """Runs a command in a terminal of its own, and yields a function that types, and one that
    returns what is shown up to a text."""
    ours, its = pty.openpty()
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)

    def type_keys(keys: bytes) -> None:
        os.write(ours, keys)

    def shown(text: str) -> str:
        found = b""
        while text.encode() not in found:
            found += os.read(ours, 1)  # raises at the end of the terminal
        return found.decode()

    try:
        yield type_keys, shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_stopped_program_gives_the_terminal_back_and_takes_it_again() -> None:
    with terminal(sys.executable, "-c", SHELL, READER) as (type_keys, shown):
        shown("ready")
        type_keys(b"\x1b[A")
        shown("key '\\x1b[A'")
        type_keys(b"\x1a")  # Ctrl-Z
        assert "\x1b[?1049l" in shown("stopped"), "the usual screen"
        assert shown("\r\n") == " True True\r\n"
        shown("\x1b[?1049h")
        shown("key ''")  # so that the screen is drawn again
        type_keys(b"q")
        shown("ended")
        assert shown("\r\n") == " 0 True\r\n"


def test_ctrl_z_that_was_ignored_before_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stop a process that no shell continues."""
    mine, its = pty.openpty()
    before = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        with open(its, closefd=False) as opened:
            monkeypatch.setattr(sys, "stdin", opened)
            with terminal_key_reader():
                assert signal.getsignal(signal.SIGTSTP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTSTP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTSTP, before)
        os.close(its)
        os.close(mine)
