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
    program, again and again: for 20,000 tensors, a third of the processor time. The block should
    wait for nothing that may take long, since other threads may make garbage meanwhile.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
