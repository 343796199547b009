"""Stands by as `hpckit.training.forking` does, but imports in the idle moments of other processes.

`python -m hpckit.training.gentle` is for a node whose ranks train: importing torch takes seconds of
processor time, which a node with few cores would take from them.
"""

from __future__ import annotations

import importlib.abc
import select
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

SHARE = 0.2
"""Of one processor, on average, until somebody waits."""
_SLICE_S = 0.01


class Gentle(importlib.abc.MetaPathFinder):
    """Finds no module, but sleeps before each: so that all take `share` of a processor.

    It stops sleeping for good when there is something to read from `fd`.
    """

    def __init__(self, share: float, fd: int) -> None:
        self._sleeps_per_s, self._fd = (1 - share) / share, fd
        self._since_s = time.process_time()
        self._is_wanted = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        used_s = time.process_time() - self._since_s
        if not self._is_wanted and used_s >= _SLICE_S:
            found, _, _ = select.select([self._fd], [], [], used_s * self._sleeps_per_s)
            self._is_wanted = bool(found)
            self._since_s = time.process_time()
        return None


def main() -> None:
    """Import, and wait to be told what to be."""
    gentle = Gentle(SHARE, sys.stdin.fileno())
    sys.meta_path.insert(0, gentle)
    from hpckit.training import forking

    sys.meta_path.remove(gentle)
    forking.stand_by()


if __name__ == "__main__":
    main()
