"""Pauses Python's collector of cyclic garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no cyclic garbage in the block, unless the program does so itself.

    The leaves of a state and the plan of a restore consist of a few objects for each tensor, value
    and chunk, none of which is garbage before they are used. The collector would look at all of
    them, and at all objects of the program, again and again: in a restore of 20,000 tensors for a
    third of the processor time, and for nine tenths of what it takes to encode a dict of 200,000
    names. What is read may come from a slow store: requests leave no cycles that hold what they
    have read. What other threads leave stays for so long, so the block should not wait for other
    nodes' saves.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
