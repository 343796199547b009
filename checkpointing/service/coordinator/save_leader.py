"""Leads the saves of a generation, on the node with rank 0."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from checkpointing.errors import SaveError
from checkpointing.format.manifest import ManifestContent
from checkpointing.format.object_keys import SaveId
from checkpointing.service.coordinator.save_announcement import (
    SaveFate,
    announced_instead,
    fate_of_save,
    last_epoch,
    newest_committed,
)
from checkpointing.service.save_errors import (
    ImpossibleSaveError,
    LeaderMovedError,
    RunTakenOverError,
)
from checkpointing.service.session_names import session_id
from checkpointing.service.snapshots import Generation
from checkpointing.store.sessions import run_ownership
from checkpointing.store.sessions.session import Session
from checkpointing.store.sessions.session_leases import abandon, fence, is_fenced
from checkpointing.store.store import Store
from checkpointing.store.write.manifest_commit import MixedReplicasError, commit, part_entries

logger = logging.getLogger("checkpointing")

SILENT_S = 600.0  # seconds without another rank's part, after which a save is given up
MOST_EPOCHS = 8  # number of epochs that one attempt to announce may try
_POLL_S, _MAX_POLL_S = 0.02, 2.0
# keys of part records that may be listed in a second: ten requests of 1,000 keys, as S3 counts them
_KEYS_PER_S = 10_000


def least_wait_s(parts: int) -> float:
    """Returns the least seconds between two listings of so many part records. While the parts of
    thousands of ranks arrive one by one, each listing shows a change and takes many requests."""
    return parts / _KEYS_PER_S


class SaveLeader:
    """Announces saves, commits each or gives it up, and keeps the lease meanwhile.

    A node that leads in place of one that is lost, but may be alive, uses sessions of its own,
    those of odd epochs, so that the two nodes can never take each other's lease.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        generation: Generation,
        found: int | None = None,
        *,
        replaces_leader: bool = False,
    ) -> None:
        """Create the leader of a generation's saves.

        Args:
            found: the owner to use if the generation does not name one; None: the present one.
            replaces_leader: whether this node leads in place of the one that led before.

        Raises:
            StoreError: the store is out of reach.
        """
        self._store, self._run, self._generation = store, run, generation
        # The owner is that of the generation and not of this process, which has served earlier
        # owners.
        owner = found if generation.owner is None else generation.owner
        self._owner = run_ownership.newest(store, run) if owner is None else owner
        self._replaces_leader = replaces_leader
        last = last_epoch(store, run, generation)
        self._epoch = last + (last % 2 != int(replaces_leader))
        self._session: Session | None = None

    def begin(self, step: int) -> SaveId:
        """Announce a save.

        Raises:
            RunTakenOverError: another process has taken over the run.
            SaveError: it cannot be announced.
            StoreError: the store is out of reach.
        """
        for _ in range(MOST_EPOCHS):
            try:
                save = self._next_session().begin(step)
            except SaveError as error:
                # the session is dead, or an earlier process gave this save up half-way
                logger.info("step %d: %s", step, error)
                self._check_owner()
            else:
                if fate_of_save(self._store, save) is not SaveFate.ABANDONED:
                    if self._replaces_leader:
                        self._fence_former()
                    return save
            self._next_epoch()  # under another session's name the save is new
        raise SaveError(f"step {step} could not be announced in {MOST_EPOCHS} successive sessions")

    def commit(
        self,
        save: SaveId,
        *,
        alone: bool,
        given_up: Callable[[], bool],
        await_parts: Callable[[int], None] = lambda missing: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> ManifestContent:
        """Commit as soon as all parts exist.

        Args:
            alone: this node has all ranks, and their parts exist.
            given_up: returns whether to stop waiting.
            await_parts: called with the number of parts that are missing, whenever it has changed,
                and with 0 in the end.
            pause: waits for so many seconds, or until `given_up` may have changed.

        Raises:
            ImpossibleSaveError: a node has given the save up, other nodes were silent for too long,
                or a tensor would be a mixture of replicas.
            SaveError: the session was declared dead.
            StoreError: the store is out of reach; calling this again continues.
        """
        if not alone:
            try:
                self._await_parts(save, given_up, await_parts, pause)
            finally:
                await_parts(0)
        if self._session is None or self._session.id != save.session:
            raise SaveError(f"{save.id} is no longer announced")
        try:
            return commit(self._store, save, self._generation.world_size, check=self._session.check)
        except MixedReplicasError as error:
            raise ImpossibleSaveError(str(error)) from error

    def give_up(self, save: SaveId) -> None:
        """Make sure that a save is never committed, so that no node waits for it."""
        abandon(self._store, save.manifest())
        self.end(save)

    def end(self, save: SaveId) -> None:
        """Withdraw the announcement of a save that is committed or given up."""
        if self._session is not None and self._session.id == save.session:
            self._session.end(save.manifest())

    def end_former(self, save: SaveId) -> None:
        """Withdraw the announcement of a save that an earlier process has made.

        Raises:
            SaveError: it cannot be known what that process had announced.
            StoreError: the store is out of reach.
        """
        session = self._next_session()
        if session.id == save.session:  # other nodes may be writing the next save already
            session.end(save.manifest(), keeps_inherited=True)

    def close(self) -> None:
        """Remove the lease."""
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
        """Fence the session of the lost leader, so that it commits nothing under its old name if it
        is alive. Comes after this node's announcement, so that a node that sees the old save given
        up also sees the one that continues it."""
        for epoch in range(self._epoch - 1, -1, -2):
            session = session_id(self._generation, epoch)
            if is_fenced(self._store, session):
                break
            logger.info("session %s is declared dead: this node is now the save leader", session)
            fence(self._store, session)

    def _check_elsewhere(self, save: SaveId) -> None:
        """Check whether a node that led while this one was away has ended the save that this node
        begins again: no parts would come then.

        Raises:
            LeaderMovedError: another node has ended it.
        """
        other = newest_committed(self._store, self._run, self._generation, self._epoch)
        if other is not None and other.save.step >= save.step and other.save != save:
            self.give_up(save)
            raise LeaderMovedError(
                f"{save.id} is not needed: {other.save.id} was committed in the meantime"
            )

    def _check_moved(self, save: SaveId) -> None:
        """Check whether another node leads now, as the node of rank 0 has come back while its heir
        waits for parts, or has an heir itself: each would wait for the parts of the other.

        Raises:
            LeaderMovedError: another node leads this save, or a later one.
        """
        now = announced_instead(self._store, self._generation, save, self._epoch)
        if now is not None and now.epoch > self._epoch:
            self.give_up(save)
            raise LeaderMovedError(f"{save.id} continues as {now.save.id}")

    def _check_owner(self) -> None:
        try:
            run_ownership.check(self._store, self._run, self._owner)
        except SaveError as error:
            self.close()
            raise RunTakenOverError(str(error)) from error

    def _await_parts(
        self,
        save: SaveId,
        given_up: Callable[[], bool],
        await_parts: Callable[[int], None],
        pause: Callable[[float], None],
    ) -> None:
        needed, seen, poll_s = self._generation.world_size, -1, _POLL_S
        changed_s = time.monotonic()
        while (found := len(part_entries(self._store, save))) < needed:
            if found != seen:
                seen, poll_s, changed_s = found, _POLL_S, time.monotonic()
                await_parts(needed - found)
            done = fate_of_save(self._store, save)
            if done is SaveFate.COMMITTED:
                return  # an earlier process has committed it and removed the parts
            if done is SaveFate.ABANDONED:
                self._check_moved(save)  # an heir of this node abandons what it continues
                self._check_elsewhere(save)
                raise ImpossibleSaveError(
                    f"{save.id}: a node gave it up; {found} of {needed} parts"
                )
            if self._epoch:  # only then may the session of another leader have been before this one
                self._check_elsewhere(save)
            if poll_s >= _MAX_POLL_S:  # parts seldom take so long
                self._check_moved(save)
            if given_up():
                raise ImpossibleSaveError(f"{save.id}: {found} of {needed} ranks have finished")
            if time.monotonic() - changed_s > SILENT_S:
                raise ImpossibleSaveError(
                    f"{save.id}: {found} of {needed} ranks have finished, and none has in the last "
                    f"{SILENT_S:g} s; every rank has to call save(), at the same steps"
                )
            pause(max(poll_s, least_wait_s(found)))
            poll_s = min(2 * poll_s, _MAX_POLL_S)
