"""Waits for conditions that other processes bring about."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], within_s: float, every_s: float = 0.02) -> bool:
    """Waits for `condition`; returns whether it became true."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def answers(address: str, port: int) -> bool:
    """Returns whether a process accepts connections there."""
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False
