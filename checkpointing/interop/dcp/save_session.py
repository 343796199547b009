"""The session of a save by DCP. It ends with the save, also where DCP does not report that the save
failed, as on another rank or in the planner."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Self

from checkpointing.format.object_keys import SaveId
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
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


_POLL_S = 0.2  # seconds between checks whether the call is over


class DcpSaveSession:
    """Holds the session and lease of one save. It is closed once the `dcp.save` that began it is
    over, or before."""

    def __init__(self, session: Session, save: SaveId) -> None:
        self.save, self.check = save, session.check
        self._session, self._closed = session, threading.Event()
        self._watch: threading.Thread | None = None

    @classmethod
    def begin(cls, store: Store, run: str, step: int) -> Self:
        """Begin a save. Raises as `Session.begin`, and then leaves nothing behind."""
        session = Session(store, run)
        try:
            begun = cls(session, session.begin(step))
        except BaseException:
            session.close()
            raise
        if (call := DcpSaveCall.current()) is not None:
            begun._close_after(call)
        return begun

    def close(self) -> None:
        """Release the lease. May be called repeatedly, from any thread."""
        self._closed.set()
        self._session.close()
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join()

    def _close_after(self, call: DcpSaveCall) -> None:
        def watch() -> None:
            while not self._closed.wait(_POLL_S):
                if call.is_over():
                    self.close()

        name = f"dcp-save-{self.save.session}"
        self._watch = threading.Thread(target=watch, name=name, daemon=True)
        self._watch.start()
