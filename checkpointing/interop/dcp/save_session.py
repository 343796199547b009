"""The session of a save by DCP. It ends with the save, also where DCP does not report that the save
failed."""

from __future__ import annotations

import threading
from typing import Self

from checkpointing.format.object_keys import SaveId
from checkpointing.interop.dcp.save_call import DcpSaveCall
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store

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
