"""The service itself, without sockets and processes: a hall for trainers and a worker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from checkpointing.errors import CheckpointError
from checkpointing.service.config import ServiceConfig
from checkpointing.service.coordinator.save_coordinator import SaveAttempt, SaveCoordinator
from checkpointing.service.coordinator.save_worker import SaveWorker
from checkpointing.service.protocol.socket_address import service_key
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from checkpointing.service.replication.node_replication import NodeReplication
from checkpointing.service.snapshots import Generation
from checkpointing.service.spool.save_tier_choice import SaveRates
from checkpointing.service.spool.spool_folder import SpoolFolder
from checkpointing.service.spool.spool_recovery import SpoolRecovery
from checkpointing.service.spool.spooler import Spooler, StoreOutlook
from checkpointing.service.upload_bandwidth import BandwidthTokenBucket, ThrottledStorage
from checkpointing.storage import Storage, open_storage
from checkpointing.storage.renewable_storage import RenewableStorage
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")

END_S = 5.0  # that what is being written gets at the very end


class CheckpointService:
    """One node's, for one run of a store.

    The store is opened when there is something to save: while it is out of reach, snapshots are
    kept, and handed over.

    Raises:
        StoreError: there can be no store at this URL.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.config, self.hall = config, SnapshotRegistry()
        self._renewable = RenewableStorage(open_storage(config.url, options=config.options))
        self._storage: Storage = self._renewable
        if config.budget.bytes_per_s is not None:
            self._storage = ThrottledStorage(
                self._storage, BandwidthTokenBucket(config.budget.bytes_per_s)
            )
        self._rounds: SaveCoordinator | None = None
        self._lock = threading.Lock()  # of the one above, the one below and the options
        self._told: list[Callable[[SaveCoordinator], None]] = []  # before there was a store
        self.replication = NodeReplication(self.hall, config)
        self._spool: SpoolFolder | None = None
        if config.local is not None:
            key = service_key(config.url, config.run, config.node)
            bound = config.budget.local_bytes
            self._spool = SpoolFolder(Path(config.local), key, bound, config.budget.cpu)
        self._spooler = Spooler(self.hall, self._spool, self._ahead, self._owner)
        self._spooler.start()
        self._worker = SaveWorker(self.hall, self._opened, config.linger_s, self._spooler)
        self._worker.start()

    def configure(self, config: ServiceConfig) -> None:
        """Go by the settings of a trainer that comes, which may have changed since another one
        started this: retention, compression and the options of the store at once, the others when
        it is started again."""
        self._renew(config)
        before = self.config
        self.config = replace(before, keep=config.keep, compress=config.compress)
        if self.config != before:
            logger.info("from now on keep=%s, compress=%s", config.keep, config.compress)
            self._tell(lambda rounds: rounds.configure(config))
        if config.budget != before.budget:
            logger.warning("a trainer comes with another budget")
        if config.local != before.local:
            logger.warning("a trainer comes with another local disk: %s stays", before.local)

    def resume(
        self,
        generation: Generation,
        damaged: frozenset[str],
        distrusted: frozenset[bytes],
    ) -> None:
        """The generation goes on from what it has restored.

        Args:
            damaged: ids of checkpoints that failed to load.
            distrusted: packs in which damage was found.
        """
        self._tell(lambda rounds: rounds.distrust(damaged, distrusted))
        self.hall.resume(generation)
        self.replication.resume(generation)

    def finish(self, timeout_s: float) -> None:
        """Return when no save is under way and the prune after the last one is over, at the latest
        after so long."""
        self.hall.rest(timeout_s)

    def grant(self, seconds: float) -> None:
        """The time that it gets to end, once it is told to."""
        self.config = replace(self.config, drain_s=max(0.0, seconds - 2 * END_S))

    def drain(self, seconds: float) -> None:
        """Write what there is, in no more than so long, and end the worker."""
        self.replication.adopt_lost()
        until_s = self.hall.drain(seconds)
        self._tell(lambda rounds: rounds.writer.hurry(until_s))
        self._worker.join(max(0.0, until_s - time.monotonic()))

    def revive(self) -> None:
        """Before any trainer comes: take what lies on the node's disk, and is not stale, back into
        memory. What cannot be is said in the log, and counted."""
        if self._spool is None:
            return
        reviver = SpoolRecovery(self.hall, self._spool, self._spooler, self.config.budget.cpu)
        try:
            self._spool.sweep()
            if found := self._spool.files():
                rounds = self._opened()
                self.hall.ledger.recovered += reviver.revive(
                    rounds.store, self.config.run, found, rounds.owners
                )
        except (CheckpointError, OSError) as error:
            logger.error("nothing comes back from the local disk: %s", error)
            self.hall.ledger.spool_failed += 1
            self.hall.ledger.spool_error = str(error)

    def spool_rest(self) -> None:
        """What is whole and not durable gets a copy on the node's disk, if there is one."""
        self._spooler.consider(ends=True)

    def close(self) -> None:
        """End, without waiting for what is being written."""
        self.replication.close(goodbye=not self.hall.unsaved())
        self.drain(0.0)
        has_ended = self._worker.join(END_S)
        self._spooler.close()
        if has_ended:
            self._storage.close()

    def status(self) -> dict[str, Any]:
        """Plain data for people and programs."""
        rounds, now = self._rounds, self._worker.now
        encode_rate, write_rate = rounds.writer.rates() if rounds is not None else (None, None)
        total, left = self._progress(now, rounds)
        return {
            "url": self._storage.url,
            "root": self.config.url,
            "run": self.config.run,
            "writing_bytes": total,
            "to_write_bytes": left,
            "encode_bytes_per_s": encode_rate,
            "write_bytes_per_s": write_rate,
            "local": self.config.local,
            "replication": self.replication.status(),
            **self.hall.status(),
            **asdict(self.hall.ledger),
        }

    def _progress(self, now: SaveAttempt | None, rounds: SaveCoordinator | None) -> tuple[int, int]:
        """Raw bytes of the save under way on this node, and how many of them are still to do."""
        if now is None or rounds is None:
            return 0, 0
        sizes = {
            snapshot.rank: snapshot.layout.bytes
            for snapshot, _ in self.hall.snapshots()
            if (snapshot.generation, snapshot.step) == (now.generation, now.save.step)
        }
        left = {rank: size for rank, size in sizes.items() if rank not in now.done}
        if rounds.writer.rank in left:
            left[rounds.writer.rank] = int(rounds.writer.progress())
        return sum(sizes.values()), sum(left.values())

    def _ahead(self) -> StoreOutlook:
        rounds, now = self._rounds, self._worker.now
        if rounds is None:
            return StoreOutlook(self._bounded(SaveRates()), compresses=self.config.compress)
        return StoreOutlook(
            self._bounded(rounds.writer.measured()),
            (now.generation, now.save.step) if now is not None else None,
            self._progress(now, rounds)[1],
            self.config.compress,
            rounds.store.record.uuid,
            rounds.newest,
        )

    def _bounded(self, rates: SaveRates) -> SaveRates:
        most = self.config.budget.bytes_per_s
        return rates if most is None else replace(rates, store=min(most, rates.store or most))

    def _owner(self, generation: Generation) -> int | None:
        rounds = self._rounds
        return rounds.owner(generation) if rounds is not None else generation.owner

    def _renew(self, config: ServiceConfig) -> None:
        """Open the store with the options of a trainer that comes: those from before may hold
        credentials that have expired."""
        with self._lock:
            if config.options == self.config.options:
                return
            try:
                self._renewable.renew(open_storage(config.url, options=config.options))
            except CheckpointError as error:
                logger.error("other options of the store cannot be used: %s", error)
                return
            self.config = replace(self.config, options=config.options)
        logger.info("a trainer comes with other options of the store: used from now on")
        self.hall.try_again()

    def _opened(self) -> SaveCoordinator:
        if self._rounds is None:
            store = Store.at(self._storage, create=True)
            rounds = SaveCoordinator(store, self.config, self.hall)
            with self._lock:
                for tell in self._told:
                    tell(rounds)
                self._rounds = rounds
        return self._rounds

    def _tell(self, tell: Callable[[SaveCoordinator], None]) -> None:
        with self._lock:
            if self._rounds is None:
                self._told.append(tell)
            else:
                tell(self._rounds)
