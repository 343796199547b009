"""Sessions: a session saves or reads in a store, and protects with its lease what it needs from
prunes and sweeps.

The order of the steps is what keeps sweeps and saves apart; FORMAT.md derives it. No step depends
on how fast another process is; time decides only when a silent session counts as dead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Self

from checkpointing.errors import SaveError, StoreAccessError, StoreError
from checkpointing.format import object_keys
from checkpointing.format.object_keys import SaveId
from checkpointing.format.store_records import Lease, dump_lease
from checkpointing.store.deletion.deletion_marks import marked_for_deletion
from checkpointing.store.sessions import run_ownership, session_leases
from checkpointing.store.store import Store, StoredManifest
from checkpointing.store.write.manifest_commit import part_entries

logger = logging.getLogger("checkpointing")

TTL_S = 600.0  # seconds without renewal after which a sweep may fence a session
_RENEWALS = 4  # renewals per TTL, so that three may fail in a row
# renewal numbers skipped, so that what a killed process has under way stays below its successor's
_GAP = 1_000_000


class Session:
    """Holds a lease while it has something to protect. Thread-safe; a context manager.

    One process of a job, normally rank 0, holds the session's lease for all ranks.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        session: str | None = None,
        owner: int | None = None,
        ttl_s: float = TTL_S,
    ) -> None:
        """Create a session.

        Args:
            session: id of the session of another process, which must have ended, to continue: what
                it had announced is protected from now on. What is not begun again before the first
                save ends is given up then.
            owner: the number of the takeover (`run_takeover.take_over`) that this session's saves
                belong to; None: the one that this process made or, if it made none, found.

        Raises:
            SaveError: `session` was fenced, or its leases cannot be read.
            StoreError: a `session` is given, and the store is out of reach.
            ValueError: `session` or `run` is not a valid name of one.
        """
        if session is not None and not object_keys.is_session(session):
            raise ValueError(f"a session must be eight hex digits, got {session!r}")
        self.store, self.run = store, object_keys.check_run(run)
        self.id = session or object_keys.new_session()
        self._owner, self._may_have_parts = owner, session is not None
        self._inherited: set[str] = set()  # announced by the process before, and not begun here
        self._lease = Lease(self.id, run, run_ownership.whoami(), ttl_s)
        self._keys: list[str] = []  # of leases that were written or tried, the newest last
        self._lock = threading.RLock()
        self._renewals = 0
        self._renewed_s: float | None = None  # monotonic time of the last renewal; None: no lease
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if session is not None:
            self._continue()

    def begin(self, step: int) -> SaveId:
        """Announce a save. Only after this may any rank look for chunks to refer to.

        Raises:
            SaveError: the session was fenced meanwhile, so that a new one is needed; or another
                process took over the run.
        """
        save = SaveId(self.run, step, self.id)
        self._check_not_given_up(save)
        self.announce(save.manifest())
        try:
            # First the lease, then this check: a takeover first becomes the owner, then reads the
            # leases.
            run_ownership.check(self.store, self.run, self._owner)
        except SaveError:
            self.end(save.manifest())
            raise
        return save

    def announce(self, key: str) -> None:
        """Record in the lease that a manifest is going to be created under `key`; raises as
        `begin`."""
        # In this order: if a deletion mark is listed here, its manifests were removed before any
        # rank lists manifests; if it is not listed here, its sweep will wait for this save.
        marks = tuple(entry.key for entry in self.store.storage.list(object_keys.DELETION_MARKS))
        with self._lock:
            # If the key was announced before, also by another process of this session, what was
            # chosen since then relies on the deletion marks that were recorded then.
            marks = self._lease.saving.get(key, marks)
            self._inherited.discard(key)
            self._renew(replace(self._lease, saving={**self._lease.saving, key: marks}))
        self._check_fence()

    def check(self) -> None:
        """Check that the session's lease is valid.

        Raises:
            SaveError: the session may have been fenced; it may commit nothing.
        """
        with self._lock:
            renewed_s = self._renewed_s
        if renewed_s is None:
            raise SaveError(f"session {self.id} has no lease: call announce() first")
        silent_s = time.monotonic() - renewed_s
        if silent_s > self._lease.ttl_s:
            raise SaveError(f"session {self.id} could not renew its lease for {silent_s:.0f} s")
        self._check_fence()

    def end(self, key: str, *, keeps_inherited: bool = False) -> None:
        """End the protection for a manifest that was committed or given up.

        Args:
            keeps_inherited: what an earlier process of this session has announced besides may still
                be begun here. Else its protection ends, too.
        """
        with self._lock:
            over = {key} if keeps_inherited else {key} | self._inherited
            self._inherited -= over
            saving = {k: v for k, v in self._lease.saving.items() if k not in over}
            self._renew_or_drop(replace(self._lease, saving=saving))

    @contextmanager
    def reading(self, key: str) -> Iterator[None]:
        """Keep the checkpoint with this manifest while the block runs.

        Raises:
            FileNotFoundError: it does not exist, or a prune has begun to remove it.
        """
        with self._lock:
            self._renew(replace(self._lease, reading=(*self._lease.reading, key)))
        try:
            # First the lease, then this look: a prune first marks for deletion, then reads the
            # leases. Deletion marks are read before manifests: what a deletion mark that is over
            # named is gone.
            going = marked_for_deletion(self.store)
            if key in going or key not in {stored.key for stored in self.store.manifests()}:
                raise FileNotFoundError(f"{key} was removed, or prune is removing it")
            yield
        finally:
            with self._lock:
                reading = list(self._lease.reading)
                reading.remove(key)
                self._renew_or_drop(replace(self._lease, reading=tuple(reading)))

    def renew(self) -> None:
        """Renew the lease if there is one. A thread calls this four times per TTL."""
        with self._lock:
            if self._renewed_s is not None:
                self._renew_or_drop(self._lease)
            elif self._keys:  # otherwise a sweep would fence an idle session
                self._delete_leases(self._keys)

    def close(self) -> None:
        """Remove the lease and end the thread that renews it."""
        with self._lock:
            self._stop.set()
            if self._renewed_s is not None:
                self._renew_or_drop(replace(self._lease, saving={}, reading=()))
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _renew(self, lease: Lease) -> None:
        self._renewals += 1  # counts tries: a write that was given up may arrive late
        lease = replace(lease, renewals=self._renewals)
        key = object_keys.lease(self.id, lease.renewals)
        self._keys.append(key)
        before_s = time.monotonic()  # the lease counts from before it was written
        self.store.storage.put(key, [dump_lease(lease)])
        self._lease, self._renewed_s = lease, before_s
        self._delete_leases(self._keys[:-1])
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name=f"lease-{self.id}", daemon=True)
            self._thread.start()

    def _renew_or_drop(self, lease: Lease) -> None:
        """Renew a lease that protects something, remove one that does not. If this fails now, the
        next renewal or a sweep does it."""
        try:
            if lease.saving or lease.reading:
                self._renew(lease)
            else:
                self._lease, self._renewed_s = lease, None
                self._delete_leases(self._keys)
        except StoreError as error:
            self._lease = lease
            logger.warning("lease of session %s: %s; trying again", self.id, error)

    def _delete_leases(self, keys: list[str]) -> None:
        """Delete leases. Older ones protect too much, but never too little, so what fails is left
        for later."""
        try:
            self.store.storage.delete(keys)
        except StoreError as error:
            logger.warning("old leases of session %s are not removed yet: %s", self.id, error)
        else:
            self._keys = [key for key in self._keys if key not in keys]

    def _keep(self) -> None:
        while not self._stop.wait(self._lease.ttl_s / _RENEWALS):
            self.renew()

    def _continue(self) -> None:
        """Protect what an earlier process of this session has announced."""
        self._check_fence()
        keys, held = session_leases.of_session(self.store, self.id)
        if held is None:
            return
        if held.lease is None or held.lease.run != self.run:
            problem = (
                "cannot be read" if held.lease is None else f"belongs to run {held.lease.run!r}"
            )
            raise SaveError(
                f"session {self.id} of run {self.run!r} cannot be continued, because its lease "
                f"{problem}: begin a new session"
            )
        self._keys, self._renewals = keys, held.lease.renewals + _GAP
        self._inherited = set(held.lease.saving)
        with self._lock:
            if held.lease.saving:
                self._renew(replace(self._lease, saving=held.lease.saving))
            else:
                self._delete_leases(self._keys)
        try:
            self._check_fence()
        except SaveError:
            self.close()
            raise

    def _check_not_given_up(self, save: SaveId) -> None:
        """Check that nothing an earlier process wrote for this save went unprotected.

        Raises:
            SaveError: there are part records from before, of which it is not known whether a sweep
                has removed what they refer to, because for a while the save was not announced.
        """
        is_held = save.manifest() in self._lease.saving
        if self._may_have_parts and not is_held and part_entries(self.store, save):
            raise SaveError(
                f"{save.id} was given up by the process that began it: save the step under a new "
                "session"
            )

    def _check_fence(self) -> None:
        if session_leases.is_fenced(self.store, self.id):
            raise SaveError(
                f"session {self.id} was declared dead, because its lease had expired or another "
                f"process took over the run {self.run!r}"
            )


@contextmanager
def leased(store: Store, stored: StoredManifest, note: Callable[[str], None]) -> Iterator[None]:
    """Hold a lease on the checkpoint while the block runs, if the store is writable.

    Args:
        note: called with the reason if it is not.

    Raises:
        FileNotFoundError: it was removed before the lease was written.
    """
    with ExitStack() as stack:
        session = stack.enter_context(Session(store, stored.save.run))
        try:
            stack.enter_context(session.reading(stored.key))
        except StoreAccessError as error:
            id_ = stored.save.id
            note(f"reading without a lease, so a prune may remove {id_} in the meantime: {error}")
        yield
