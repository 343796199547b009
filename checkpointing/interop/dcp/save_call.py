"""Determines whether the `dcp.save` that called a storage writer is still in progress.

DCP does not report to the writer a failure elsewhere, such as on another rank or in the planner.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Self

from checkpointing.torch_internals import DCP_SAVE


class DcpSaveCall:
    """One call of torch's save function, identified by the thread that it runs in."""

    def __init__(self, thread: int, frame: FrameType) -> None:
        self._thread, self._frame = thread, frame

    @classmethod
    def current(cls) -> Self | None:
        """Returns the save call that this function is called by; None if something else calls the
        writer."""
        for frame in _stack(sys._getframe()):
            name = frame.f_globals.get("__name__")
            if (name, frame.f_code.co_name) == DCP_SAVE:
                return cls(threading.get_ident(), frame)
        return None

    def is_over(self) -> bool:
        """Whether the call has returned or raised."""
        top = sys._current_frames().get(self._thread)
        return all(frame is not self._frame for frame in _stack(top))


def _stack(top: FrameType | None) -> list[FrameType]:
    found = []
    while top is not None:
        found.append(top)
        top = top.f_back
    return found
