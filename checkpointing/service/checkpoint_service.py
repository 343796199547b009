"""The checkpoint service without sockets and processes: a registry for trainers and a worker thread
that saves."""

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
from checkpointing.storage.forwarding_storage import RenewableStorage
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")

END_S = 5.0  # seconds for the write that is under way when the service ends


class CheckpointService:
    """The checkpoint service of one node for one run of a store.

    The store is opened when there is something to save. While it is out of reach, snapshots are
    kept in memory and handed over to trainers that restore.

    Raises:
        StoreError: there can be no store at this URL.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.config, self.registry = config, SnapshotRegistry()
        self._renewable = RenewableStorage(open_storage(config.url, options=config.options))
        self._storage: Storage = self._renewable
        if config.budget.bytes_per_s is not None:
            self._storage = ThrottledStorage(
                self._storage, BandwidthTokenBucket(config.budget.bytes_per_s)
            )
        self._coordinator: SaveCoordinator | None = None
        self._lock = threading.Lock()  # guards `_store`, `_coordinator` and the options
        # calls to make on the coordinator once the store is open
        self._deferred_calls: list[Callable[[SaveCoordinator], None]] = []
        self.replication = NodeReplication(self.registry, config)
        self._spool: SpoolFolder | None = None
        if config.local is not None:
            key = service_key(config.url, config.run, config.node)
            bound = config.budget.local_bytes
            self._spool = SpoolFolder(Path(config.local), key, bound, config.budget.cpu)
        self._spooler = Spooler(self.registry, self._spool, self._outlook, self._owner)
        self._spooler.start()
        self._worker = SaveWorker(self.registry, self._opened, config.linger_s, self._spooler)
        self._worker.start()

    def configure(self, config: ServiceConfig) -> None:
        """Apply the settings of a trainer that connects, which may differ from those that the
        service was started with. Retention, compression and the options of the store apply
        immediately, all others when the service is started again."""
        self._renew(config)
        before = self.config
        self.config = replace(before, keep=config.keep, compress=config.compress)
        if self.config != before:
            logger.info("from now on keep=%s, compress=%s", config.keep, config.compress)
            self._call_coordinator(lambda coordinator: coordinator.configure(config))
        if config.budget != before.budget:
            logger.warning("a trainer joined with another budget")
        if config.local != before.local:
            logger.warning("a trainer joined with another local disk: %s is kept", before.local)

    def resume(
        self,
        generation: Generation,
        damaged: frozenset[str],
        distrusted: frozenset[bytes],
        skipped: frozenset[str],
    ) -> None:
        """Record that the generation continues from what it has restored.

        Args:
            damaged: ids of checkpoints that failed to load.
            distrusted: packs in which damage was found.
            skipped: ids of checkpoints that are newer, or are never used again.
        """

        def note(coordinator: SaveCoordinator) -> None:
            coordinator.distrust(damaged, distrusted)
            coordinator.skip(skipped)

        self._call_coordinator(note)
        self.registry.resume(generation)
        self.replication.resume(generation)

    def finish(self, timeout_s: float) -> None:
        """Wait until no save is under way and the prune after the last one is over, or until
        `timeout_s` has passed."""
        self.registry.rest(timeout_s)

    def grant(self, seconds: float) -> None:
        """Set how long the service may take to end once it has to."""
        self.config = replace(self.config, drain_s=max(0.0, seconds - 2 * END_S))

    def drain(self, seconds: float) -> None:
        """Write what is held within `seconds`, then end the worker."""
        self.replication.save_all_lost_nodes()
        until_s = self.registry.drain(seconds)
        self._call_coordinator(lambda coordinator: coordinator.writer.hurry(until_s))
        self._worker.join(max(0.0, until_s - time.monotonic()))

    def recover_spool(self) -> None:
        """Load the snapshots on the node's disk that are not stale back into memory, before any
        trainer connects. Those that cannot be loaded are logged and counted."""
        if self._spool is None:
            return
        recovery = SpoolRecovery(self.registry, self._spool, self._spooler, self.config.budget.cpu)
        try:
            self._spool.sweep()
            if found := self._spool.files():
                coordinator = self._opened()
                self.registry.ledger.recovered += recovery.recover(
                    coordinator.store, self.config.run, found, coordinator.owners
                )
        except (CheckpointError, OSError) as error:
            logger.error("cannot recover snapshots from the local disk: %s", error)
            self.registry.ledger.spool_failed += 1
            self.registry.ledger.spool_error = str(error)

    def spool_rest(self) -> None:
        """Copy every snapshot that is whole but not durable to the node's disk, if there is one."""
        self._spooler.consider(ends=True)

    def close(self) -> None:
        """End without waiting for what is being written."""
        self.replication.close(goodbye=not self.registry.unsaved())
        self.drain(0.0)
        has_ended = self._worker.join(END_S)
        self._spooler.close()
        if has_ended:
            self._storage.close()

    def status(self) -> dict[str, Any]:
        """Return the state of the service as plain data, for `hpckit ckpt status` and for
        metrics."""
        coordinator, now = self._coordinator, self._worker.now
        encode_rate, write_rate = (
            coordinator.writer.rates() if coordinator is not None else (None, None)
        )
        total, left = self._progress(now, coordinator)
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
            **self.registry.status(),
            **asdict(self.registry.ledger),
        }

    def _progress(
        self, now: SaveAttempt | None, coordinator: SaveCoordinator | None
    ) -> tuple[int, int]:
        """Return the raw bytes of the save under way on this node, and how many of them are still
        to be written."""
        if now is None or coordinator is None:
            return 0, 0
        sizes = {
            snapshot.rank: snapshot.layout.bytes
            for snapshot, _ in self.registry.snapshots()
            if (snapshot.generation, snapshot.step) == (now.generation, now.save.step)
        }
        left = {rank: size for rank, size in sizes.items() if rank not in now.done}
        if coordinator.writer.rank in left:
            left[coordinator.writer.rank] = int(coordinator.writer.progress())
        return sum(sizes.values()), sum(left.values())

    def _outlook(self) -> StoreOutlook:
        coordinator, now = self._coordinator, self._worker.now
        if coordinator is None:
            return StoreOutlook(self._bounded(SaveRates()), compresses=bool(self.config.compress))
        return StoreOutlook(
            self._bounded(coordinator.writer.measured()),
            (now.generation, now.save.step) if now is not None else None,
            self._progress(now, coordinator)[1],
            bool(self.config.compress),
            coordinator.store.record.uuid,
            coordinator.newest,
        )

    def _bounded(self, rates: SaveRates) -> SaveRates:
        most = self.config.budget.bytes_per_s
        return rates if most is None else replace(rates, store=min(most, rates.store or most))

    def _owner(self, generation: Generation) -> int | None:
        coordinator = self._coordinator
        return coordinator.owner(generation) if coordinator is not None else generation.owner

    def _renew(self, config: ServiceConfig) -> None:
        """Reopen the store with the options of a trainer that connects, because the earlier ones
        may hold credentials that have expired."""
        with self._lock:
            if config.options == self.config.options:
                return
            try:
                self._renewable.renew(open_storage(config.url, options=config.options))
            except CheckpointError as error:
                logger.error("the new options of the store cannot be used: %s", error)
                return
            self.config = replace(self.config, options=config.options)
        logger.info("a trainer joined with other options of the store, which are used from now on")
        self.registry.try_again()

    def _opened(self) -> SaveCoordinator:
        if self._coordinator is None:
            store = Store.at(self._storage, create=True)
            coordinator = SaveCoordinator(store, self.config, self.registry)
            with self._lock:
                for call in self._deferred_calls:
                    call(coordinator)
                self._coordinator = coordinator
        return self._coordinator

    def _call_coordinator(self, call: Callable[[SaveCoordinator], None]) -> None:
        with self._lock:
            if self._coordinator is None:
                self._deferred_calls.append(call)
            else:
                call(self._coordinator)
