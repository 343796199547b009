"""The saves of a generation as the node with rank 0 leads them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from checkpointing.errors import SaveError
from checkpointing.format.manifest import ManifestContent
from checkpointing.format.object_keys import SaveId
from checkpointing.service.coordinator.save_announcement import (
    SaveFate,
    fate_of_save,
    last_epoch,
    newest_committed,
    session_id,
)
from checkpointing.service.snapshots import Generation
from checkpointing.store.sessions import run_ownership
from checkpointing.store.sessions.session import Session
from checkpointing.store.sessions.session_leases import abandon, fence, is_fenced
from checkpointing.store.store import Store
from checkpointing.store.write.manifest_commit import MixedReplicasError, commit, part_entries

logger = logging.getLogger("checkpointing")

SILENT_S = 600.0  # without another rank's part, after which a save is given up
MOST_EPOCHS = 8  # that one attempt to announce goes through
_POLL_S, _MAX_POLL_S = 0.02, 2.0


class ImpossibleSaveError(SaveError):
    """A save that can never be complete, because a rank has not got its step."""


class LeaderMovedError(SaveError):
    """A save that goes on under another name, led by another node than before."""


class RunTakenOverError(SaveError):
    """Another process saves the run now: nothing of this generation can be committed any more."""


class SaveLeader:
    """Announces saves, commits or gives up each, and keeps the lease meanwhile.

    A node that leads in place of one that is lost, but may be alive, has sessions of its own, those
    of odd epochs: so the two can never take each other's lease.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        generation: Generation,
        found: int | None = None,
        *,
        is_heir: bool = False,
    ) -> None:
        """
        Args:
            found: the owner to go by if the generation does not say; None: the present one.
            is_heir: this node leads in place of the one that began to.

        Raises:
            StoreError: the store is out of reach.
        """
        self._store, self._run, self._generation = store, run, generation
        # of the generation, and not of this process, which has served earlier owners
        owner = found if generation.owner is None else generation.owner
        self._owner = run_ownership.newest(store, run) if owner is None else owner
        self._is_heir = is_heir
        last = last_epoch(store, run, generation)
        self._epoch = last + (last % 2 != int(is_heir))
        self._session: Session | None = None

    def begin(self, step: int) -> SaveId:
        """Announce a save.

        Raises:
            TakenOverError: another process has taken over the run.
            SaveError: it cannot be announced.
            StoreError: the store is out of reach.
        """
        for _ in range(MOST_EPOCHS):
            try:
                save = self._next_session().begin(step)
            except SaveError as error:
                # dead, or given up half-way by a process before
                logger.info("step %d: %s", step, error)
                self._check_owner()
            else:
                if fate_of_save(self._store, save) is not SaveFate.ABANDONED:
                    if self._is_heir:
                        self._fence_former()
                    return save
            self._next_epoch()  # under another name it is new
        raise SaveError(f"step {step} cannot be announced as {MOST_EPOCHS} sessions in turn")

    def commit(self, save: SaveId, *, alone: bool, given_up: Callable[[], bool]) -> ManifestContent:
        """Commit as soon as all parts are there.

        Args:
            alone: this node has all ranks, and their parts are there.
            given_up: whether to wait no longer.

        Raises:
            HopelessError: a node has given it up, other nodes were silent for too long, or a tensor
                would be a mixture of replicas.
            SaveError: it was declared dead.
            StoreError: the store is out of reach; calling this again goes on.
        """
        if not alone:
            self._await_parts(save, given_up)
        if self._session is None or self._session.id != save.session:
            raise SaveError(f"{save.id} is announced no longer")
        try:
            return commit(self._store, save, self._generation.world_size, check=self._session.check)
        except MixedReplicasError as error:
            raise ImpossibleSaveError(str(error)) from error

    def give_up(self, save: SaveId) -> None:
        """See to it that a save is never committed, so that no node waits for it."""
        abandon(self._store, save.manifest())
        self.end(save)

    def end(self, save: SaveId) -> None:
        """It is committed or given up."""
        if self._session is not None and self._session.id == save.session:
            self._session.end(save.manifest())

    def end_former(self, save: SaveId) -> None:
        """The same for what a process before this one has announced.

        Raises:
            SaveError: nobody can tell what it announced.
            StoreError: the store is out of reach.
        """
        session = self._next_session()
        if session.id == save.session:
            session.end(save.manifest())

    def close(self) -> None:
        """Give the lease back."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _next_session(self) -> Session:
        if self._session is None:
            while is_fenced(self._store, session_id(self._generation, self._epoch)):
                self._epoch += 2
            name = session_id(self._generation, self._epoch)
            self._session = Session(self._store, self._run, session=name, owner=self._owner)
        return self._session

    def _next_epoch(self) -> None:
        self.close()
        self._epoch += 2

    def _fence_former(self) -> None:
        """The lost node commits nothing under its old name, should it be alive. After this one's
        announcement, so that who sees the old save given up sees what it goes on as."""
        for epoch in range(self._epoch - 1, -1, -2):
            session = session_id(self._generation, epoch)
            if is_fenced(self._store, session):
                break
            logger.info("session %s is declared dead: this node leads in its place", session)
            fence(self._store, session)

    def _check_elsewhere(self, save: SaveId) -> None:
        """An heir that led while this node was away may have ended what this one begins anew: then
        nobody comes with parts.

        Raises:
            MovedError: so it is.
        """
        other = newest_committed(self._store, self._run, self._generation, self._epoch)
        if other is not None and other.save.step >= save.step and other.save != save:
            self.give_up(save)
            raise LeaderMovedError(
                f"{save.id} is not needed: {other.save.id} was committed meanwhile"
            )

    def _check_owner(self) -> None:
        try:
            run_ownership.check(self._store, self._run, self._owner)
        except SaveError as error:
            self.close()
            raise RunTakenOverError(str(error)) from error

    def _await_parts(self, save: SaveId, given_up: Callable[[], bool]) -> None:
        needed, seen, poll_s = self._generation.world_size, -1, _POLL_S
        heard_s = time.monotonic()
        while (found := len(part_entries(self._store, save))) < needed:
            if found != seen:
                seen, poll_s, heard_s = found, _POLL_S, time.monotonic()
            done = fate_of_save(self._store, save)
            if done is SaveFate.COMMITTED:
                return  # by a process before this one, which has removed the parts
            if done is SaveFate.ABANDONED:
                raise ImpossibleSaveError(
                    f"{save.id}: a node gave it up; {found} of {needed} parts"
                )
            if self._epoch:  # only then may an heir's session have been before it
                self._check_elsewhere(save)
            if given_up() or time.monotonic() - heard_s > SILENT_S:
                raise ImpossibleSaveError(f"{save.id}: {found} of {needed} ranks have finished")
            time.sleep(poll_s)
            poll_s = min(2 * poll_s, _MAX_POLL_S)
