"""Reads single keys from the terminal."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

UP, DOWN = "\x1b[A", "\x1b[B"
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)
_LEAVE_SCREEN, _ENTER_SCREEN = b"\x1b[?25h\x1b[?1049l", b"\x1b[?1049h\x1b[?25l"
"""Codes that show the usual screen and its cursor, and the screen of a program without one."""
_MOST = 256  # bytes of one read, with all keys that were pressed since the last one
Read = Callable[[float], str]


@contextmanager
def terminal_key_reader() -> Iterator[Read]:
    """Yields a function that waits up to the given number of seconds and returns the next key, or
    "" if there is none, or if the terminal has another size. Ctrl-C still raises KeyboardInterrupt;
    SIGTERM and SIGHUP raise SystemExit, so that the terminal is left as it was; while Ctrl-Z stops
    the process, it is, too."""
    handle = sys.stdin.fileno()
    waiting: list[str] = []
    before = termios.tcgetattr(handle)
    tty.setcbreak(handle)

    def stop(number: int, frame: FrameType | None) -> None:
        os.write(sys.stdout.fileno(), _LEAVE_SCREEN)
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
        usual = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # returns when the process is continued
        signal.signal(signal.SIGTSTP, usual)
        tty.setcbreak(handle)
        os.write(sys.stdout.fileno(), _ENTER_SCREEN)

    try:
        with _signals_as_bytes(stop) as signals:

            def read(within_s: float) -> str:
                if not waiting:
                    ready = select.select([handle, signals], [], [], max(0.0, within_s))[0]
                    if signals in ready:
                        os.read(signals, _MOST)
                    elif ready:
                        typed = os.read(handle, _MOST).decode(errors="replace")
                        waiting.extend(_KEY.findall(typed.replace("\x1bO", "\x1b[")))  # of a keypad
                return waiting.pop(0) if waiting else ""

            yield read
    finally:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(handle, termios.TCSADRAIN, before)


@contextmanager
def _signals_as_bytes(stop: Callable[[int, FrameType | None], None]) -> Iterator[int]:
    """Yields a descriptor from which a byte can be read after each signal, so that a change of the
    terminal's size, and a continuation after `stop` has handled SIGTSTP, end a wait."""
    mine, its = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(its, warn_on_full_buffer=False)
    handlers = {one: signal.signal(one, _leave) for one in (signal.SIGTERM, signal.SIGHUP)}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)
    if signal.getsignal(signal.SIGTSTP) != signal.SIG_IGN:  # nobody would continue the process
        handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, stop)
    try:
        yield mine
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)
        signal.set_wakeup_fd(before)
        os.close(mine)
        os.close(its)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
