"""Pauses Python's collector of cyclic garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no cyclic garbage in the block, unless the program does so itself.

    The plan of a restore consists of a few objects for each tensor and chunk, none of which is
    garbage before it ends. The collector would look at all of them, and at all objects of the
    program, again and again: for 20,000 tensors, a third of the processor time. What is read may
    come from a slow store: requests leave no cycles that hold what they have read. What other
    threads leave stays for so long, so the block should not wait for other nodes' saves.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
