"""Reads single keys from the terminal."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

UP, DOWN = "\x1b[A", "\x1b[B"
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)
_MOST = 256  # bytes of one read, with all keys that were pressed since the last one
Read = Callable[[float], str]


@contextmanager
def terminal_key_reader() -> Iterator[Read]:
    """Yields a function that waits up to the given number of seconds and returns the next key, or
    "" if there is none. Ctrl-C still raises KeyboardInterrupt."""
    handle = sys.stdin.fileno()
    waiting: list[str] = []
    before = termios.tcgetattr(handle)
    tty.setcbreak(handle)

    def read(within_s: float) -> str:
        if not waiting and select.select([handle], [], [], max(0.0, within_s))[0]:
            typed = os.read(handle, _MOST).decode(errors="replace")
            waiting.extend(_KEY.findall(typed.replace("\x1bO", "\x1b[")))  # of a keypad
        return waiting.pop(0) if waiting else ""

    try:
        yield read
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
