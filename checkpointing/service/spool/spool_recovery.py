"""Loads spooled snapshots when a service starts: those from which no training has continued are put
back into memory as if their trainers had left them there."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from checkpointing.errors import CheckpointError, DamagedError, FormatError
from checkpointing.service.config import RECOVER_S
from checkpointing.service.registry.rank_slots import ArenaLayout
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from checkpointing.service.session_names import AHEAD, session_id
from checkpointing.service.snapshots import Generation, RankSnapshot
from checkpointing.service.spool import spool_file
from checkpointing.service.spool.spool_file import SpoolHeader
from checkpointing.service.spool.spool_folder import SpoolEntry, SpoolFolder
from checkpointing.service.spool.spooler import Spooler
from checkpointing.staging import host_memory
from checkpointing.staging.arena import Arena
from checkpointing.store.catalog import committed
from checkpointing.store.sessions import run_ownership
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")


@dataclass(frozen=True)
class CommittedStep:
    """A checkpoint in the store."""

    session: str
    step: int
    created: float  # Unix time of the call of `save`; -inf if its manifest cannot be read


@dataclass(frozen=True)
class RunHistory:
    """What the store knows about a run."""

    uuid: str  # uuid of the store
    owner: int  # number of the last takeover; 0: none
    commits: Sequence[CommittedStep]


@dataclass(frozen=True)
class SpoolCandidate:
    """A spool file whose header is whole and that is not stale."""

    file: SpoolEntry
    spooled: SpoolHeader


def why_stale(spooled: SpoolHeader, history: RunHistory) -> str | None:
    """Return why training must not continue from a spooled snapshot; None if it may. A pure
    function.

    A snapshot is stale if it is durable, or if training has continued from an earlier state since.
    A takeover of the run without a commit does not make it stale.
    """
    snapshot, owner = spooled.snapshot, spooled.owner or 0
    newest = max((commit.step for commit in history.commits), default=-1)
    if spooled.store is not None and spooled.store != history.uuid:
        return f"it belongs to another store: {spooled.store}, not {history.uuid}"
    if owner > history.owner:
        return (
            f"the store has recorded {history.owner} takeovers of the run, and this snapshot is "
            f"from {owner}"
        )
    if newest < spooled.since:
        return (
            f"step {spooled.since} was committed then but no longer exists: the run was reset to "
            "an earlier step"
        )
    mine = {session_id(snapshot.generation, epoch) for epoch in range(AHEAD)}
    for commit in history.commits:
        if commit.session in mine and commit.step >= snapshot.step:
            return f"step {commit.step} of its generation is committed"
        if commit.session in mine:
            continue
        if commit.step == snapshot.step:
            return f"step {commit.step} is committed"
        if commit.created > snapshot.created:
            return f"step {commit.step} was saved later and is committed"
        if commit.step > snapshot.step and history.owner > owner:
            return f"step {commit.step} is committed, and the run was taken over since then"
    return None


def run_history(store: Store, run: str) -> RunHistory:
    """Read what the store knows about a run.

    Raises:
        StoreError: the store is out of reach.
    """
    owner = run_ownership.newest(
        store, run
    )  # read before the commits, so that what is missed is no older than it
    found, problems = committed(store, run)
    commits = [
        CommittedStep(one.stored.save.session, one.stored.save.step, one.document.header.created)
        for one in found
    ]
    commits += [CommittedStep(save.session, save.step, float("-inf")) for save in problems]
    return RunHistory(store.record.uuid, owner, commits)


def newest_generation(candidates: Sequence[SpoolCandidate]) -> list[SpoolCandidate]:
    """Return the files of the last generation that has left any, the newest step first; a pure
    function."""

    def age(one: SpoolCandidate) -> tuple[int, float]:
        return one.spooled.owner or 0, one.spooled.snapshot.created

    if not candidates:
        return []
    generation = max(candidates, key=age).spooled.snapshot.generation
    mine = [one for one in candidates if one.spooled.snapshot.generation == generation]
    return sorted(mine, key=lambda one: one.spooled.snapshot.step, reverse=True)


@dataclass(frozen=True)
class RecoveredSnapshots:
    """One rank's snapshots in memory, the oldest first."""

    snapshots: Sequence[RankSnapshot]
    arena_layout: ArenaLayout


class SpoolRecovery:
    """Recovers the spooled snapshots of one service."""

    def __init__(
        self, registry: SnapshotRegistry, spool: SpoolFolder, spooler: Spooler, threads: int
    ) -> None:
        """Describe a recovery.

        Args:
            threads: number of threads that read and check.
        """
        self._registry, self._spool, self._spooler = registry, spool, spooler
        self._threads = threads

    def recover(
        self, store: Store, run: str, found: Sequence[SpoolEntry], owners_of: dict[Generation, int]
    ) -> int:
        """Verify the files, remove stale and damaged ones, and hold the rest in memory; return how
        many ranks have snapshots in it.

        Args:
            owners_of: receives the takeovers of generations that do not name theirs, so that none
                is mistaken for one of the present owner.

        Raises:
            StoreError: the store is out of reach; nothing was changed.
            ServiceError, OSError: the folder cannot be used.
        """
        until_s = time.monotonic() + RECOVER_S
        history = run_history(store, run)
        candidates = [one for file in found if (one := self._candidate(file, history)) is not None]
        chosen = newest_generation(candidates)
        for one in chosen[:1]:
            generation = one.spooled.snapshot.generation
            if generation.owner is None:
                owners_of[generation] = one.spooled.owner or 0
        for one in candidates:
            if one not in chosen:
                logger.info("%s waits: a later generation has left another one", one.file.path)
        by_rank = itertools.groupby(
            sorted(chosen, key=lambda one: one.file.rank), key=lambda one: one.file.rank
        )
        loaded: list[RecoveredSnapshots] = []
        for rank, rank_files in by_rank:
            if time.monotonic() > until_s:
                logger.error(
                    "rank %d and later ones stay on the disk, because no time is left", rank
                )
                break
            if (back := self._load(list(rank_files))) is not None:
                loaded.append(back)
        with self._registry.atomically():  # otherwise a save would begin with some of the ranks
            return sum(self._install(one) for one in loaded)

    def _candidate(self, file: SpoolEntry, history: RunHistory) -> SpoolCandidate | None:
        try:
            with spool_file.opened(file.path) as (_, head):
                spooled = head.spooled
        except (FormatError, OSError) as error:
            logger.error("the local copy %s is not used: %s", file.path, error)
            return None
        except DamagedError as error:
            self._discard(file, f"damage: {error}")
            return None
        if (why := why_stale(spooled, history)) is not None:
            self._discard(file, why)
            return None
        self._spooler.knows(file.path.name, spooled.snapshot)
        return SpoolCandidate(file, spooled)

    def _load(self, rank_files: Sequence[SpoolCandidate]) -> RecoveredSnapshots | None:
        """Read one rank's snapshots into memory; `rank_files` are the newest first."""
        shape = (rank_files[0].spooled.slots, rank_files[0].spooled.slot_bytes)
        rank_files = [
            one for one in rank_files if (one.spooled.slots, one.spooled.slot_bytes) == shape
        ]
        slots, slot_bytes = shape
        try:
            host_memory.require(slot_bytes, min(slots, len(rank_files)))
            with Arena.create(slots * slot_bytes, "revived") as arena:
                read = self._read(rank_files, arena, slots, slot_bytes)
                if not read:
                    return None
                memory = Arena.attach(os.dup(arena.fd), writable=False)
        except CheckpointError as error:
            _report_kept(rank_files[0].file.rank, error)
            return None
        return RecoveredSnapshots(read[::-1], ArenaLayout(memory, slots, slot_bytes))

    def _install(self, loaded: RecoveredSnapshots) -> int:
        """Install one rank's snapshots in the registry; return how many are held."""
        *older, newest = loaded.snapshots
        try:
            is_held = self._registry.install(newest, loaded.arena_layout, older)
        except CheckpointError as error:
            loaded.arena_layout.arena.close()
            _report_kept(newest.rank, error)
            return 0
        steps = [snapshot.step for snapshot in loaded.snapshots]
        logger.info("rank %d: steps %s were read from the local disk", newest.rank, steps)
        return len(steps) if is_held else 0

    def _read(
        self, rank_files: Sequence[SpoolCandidate], arena: Arena, slots: int, slot_bytes: int
    ) -> list[RankSnapshot]:
        """Return the snapshots that are whole, each in a slot."""
        read: list[RankSnapshot] = []
        for one in rank_files:
            if len(read) == slots:
                break
            into = arena.view(len(read) * slot_bytes, one.spooled.bytes)
            try:
                with spool_file.opened(one.file.path) as (fd, head):
                    spool_file.read(fd, head, into, self._threads, one.file.path)
            except DamagedError as error:
                self._discard(one.file, f"damage: {error}")
            except OSError as error:
                logger.error("%s cannot be read: %s", one.file.path, error)
            else:
                # The deadline was one of an earlier time.
                read.append(replace(one.spooled.snapshot, slot=len(read), deadline_s=None))
        return read

    def _discard(self, file: SpoolEntry, why: str) -> None:
        logger.warning("the local copy %s is discarded: %s", file.path, why)
        try:
            self._spool.remove([file.path.name])
        except OSError as error:
            logger.error("%s cannot be removed: %s", file.path, error)


def _report_kept(rank: int, error: CheckpointError) -> None:
    logger.error("rank %d: its local copies stay on the disk: %s", rank, error)
