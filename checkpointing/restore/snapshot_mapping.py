"""Maps a snapshot that was left in this node's memory into the process that is about to restore it,
beside what the process does before."""

from __future__ import annotations

import threading

from checkpointing.service.client.held_snapshots import LeftoverArena

_STEP = 16 << 20  # bytes between two checks of whether to continue; 2 ms


class SnapshotMapping:
    """Maps the newest snapshot that an earlier trainer has left, in a thread of its own, from the
    construction of this object until `stop`. A restore copies what is mapped by then in a third of
    the time, and saves need the same pages mapped later. If another snapshot is restored, nothing
    is lost but the time of one core. Mapping changes nothing, so that it needs no agreement of the
    ranks."""

    def __init__(self, left: LeftoverArena | None) -> None:
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if left is not None and left.newest is not None:
            args = (left, self._is_stopped)
            self._thread = threading.Thread(target=_map, args=args, name="map", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Block until all of it is mapped, or cannot be."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Map no more of it; a second call does nothing."""
        self._is_stopped.set()
        self.wait()


def _map(left: LeftoverArena, is_stopped: threading.Event) -> None:
    assert left.newest is not None
    start, length = left.newest
    for at in range(start, start + length, _STEP):
        if is_stopped.is_set():
            return
        try:
            if not left.arena.map_ahead(at, min(at + _STEP, start + length)):
                return
        except ValueError:  # it was closed, so nothing will be read from it
            return
