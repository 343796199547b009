"""The saves of a generation as the node with rank 0 leads them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from checkpointing.errors import SaveError
from checkpointing.format import names
from checkpointing.format.manifest import Content
from checkpointing.format.names import Save
from checkpointing.service.announcing import Fate, fate, session_id
from checkpointing.service.snapshots import Generation
from checkpointing.store.commit import commit, part_entries
from checkpointing.store.leases import abandon
from checkpointing.store.session import Session
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")

SILENT_S = 600.0  # without another rank's part, after which a save is given up
_POLL_S, _MAX_POLL_S = 0.02, 2.0


class HopelessError(SaveError):
    """A save that can never be complete, because a rank has not got its step."""


class Leader:
    """Announces saves, commits or gives up each, and keeps the lease meanwhile."""

    def __init__(self, store: Store, run: str, generation: Generation) -> None:
        self._store, self._run, self._generation = store, run, generation
        self._epoch = 0
        self._session: Session | None = None

    def begin(self, step: int) -> Save:
        """Announce a save.

        Raises:
            SaveError: another process has taken over the run.
            StoreError: the store is out of reach.
        """
        while True:
            session = self._session or self._next_session()
            try:
                return session.begin(step)
            except SaveError:
                self.close()
                if not self._is_fenced(session.id):
                    raise
                self._epoch += 1

    def commit(self, save: Save, *, alone: bool, given_up: Callable[[], bool]) -> Content:
        """Commit as soon as all parts are there.

        Args:
            alone: this node has all ranks, and their parts are there.
            given_up: whether to wait no longer.

        Raises:
            HopelessError: a node has given it up, or other nodes were silent for too long.
            SaveError: it was declared dead.
            StoreError: the store is out of reach; calling this again goes on.
        """
        if not alone:
            self._await_parts(save, given_up)
        assert self._session is not None
        return commit(self._store, save, self._generation.world_size, check=self._session.check)

    def give_up(self, save: Save) -> None:
        """See to it that a save is never committed, so that no node waits for it."""
        abandon(self._store, save.manifest())
        self._epoch += 1  # this step may be saved again, under another name
        self.close()

    def end(self, save: Save) -> None:
        """It is committed."""
        if self._session is not None:
            self._session.end(save.manifest())

    def close(self) -> None:
        """Give the lease back."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _next_session(self) -> Session:
        while self._is_fenced(session_id(self._generation, self._epoch)):
            self._epoch += 1
        name = session_id(self._generation, self._epoch)
        self._session = Session(self._store, self._run, session=name)
        return self._session

    def _is_fenced(self, session: str) -> bool:
        try:
            self._store.storage.get(names.fence(session))
        except FileNotFoundError:
            return False
        return True

    def _await_parts(self, save: Save, given_up: Callable[[], bool]) -> None:
        needed, seen, poll_s = self._generation.world_size, -1, _POLL_S
        heard_s = time.monotonic()
        while (found := len(part_entries(self._store, save))) < needed:
            if found != seen:
                seen, poll_s, heard_s = found, _POLL_S, time.monotonic()
            if fate(self._store, save) is Fate.ABANDONED:
                raise HopelessError(f"{save.id}: a node gave it up; {found} of {needed} parts")
            if given_up() or time.monotonic() - heard_s > SILENT_S:
                raise HopelessError(f"{save.id}: {found} of {needed} ranks have finished")
            time.sleep(poll_s)
            poll_s = min(2 * poll_s, _MAX_POLL_S)
