"""The service itself, without sockets and processes: a hall for trainers and a worker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from checkpointing.service.config import Config
from checkpointing.service.hall import Hall
from checkpointing.service.round import Round, Rounds
from checkpointing.service.snapshots import Generation
from checkpointing.service.throttle import Throttled, TokenBucket
from checkpointing.service.worker import Worker
from checkpointing.storage import Storage, open_storage
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")

END_S = 5.0  # that what is being written gets at the very end


class Service:
    """One node's, for one run of a store.

    The store is opened when there is something to save: while it is out of reach, snapshots are
    kept, and handed over.

    Raises:
        StoreError: there can be no store at this URL.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.hall = config, Hall()
        self._storage: Storage = open_storage(config.url, options=config.options)
        if config.budget.bytes_per_s is not None:
            self._storage = Throttled(self._storage, TokenBucket(config.budget.bytes_per_s))
        self._rounds: Rounds | None = None
        self._lock = threading.Lock()  # of the one above and the one below
        self._told: list[Callable[[Rounds], None]] = []  # before there was a store
        self._worker = Worker(self.hall, self._opened, config.linger_s)
        self._worker.start()

    def configure(self, config: Config) -> None:
        """Go by the settings of a trainer that comes, which may have changed since another one
        started this: retention and compression at once, the others when it is started again."""
        before = self.config
        self.config = replace(before, keep=config.keep, compress=config.compress)
        if self.config != before:
            logger.info("from now on keep=%s, compress=%s", config.keep, config.compress)
            self._tell(lambda rounds: rounds.configure(config))
        if (config.budget, config.options) != (before.budget, before.options):
            logger.warning("a trainer comes with another budget, or other options of the store")

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

    def finish(self, timeout_s: float) -> None:
        """Return when no save is under way and the prune after the last one is over, at the latest
        after so long."""
        self.hall.rest(timeout_s)

    def drain(self, seconds: float) -> None:
        """Write what there is, in no more than so long, and end the worker."""
        until_s = self.hall.drain(seconds)
        if (rounds := self._rounds) is not None:
            rounds.writer.hurry(until_s)
        self._worker.join(max(0.0, until_s - time.monotonic()))

    def close(self) -> None:
        """End, without waiting for what is being written."""
        self.drain(0.0)
        if self._worker.join(END_S):
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
            **self.hall.status(),
            **asdict(self.hall.ledger),
        }

    def _progress(self, now: Round | None, rounds: Rounds | None) -> tuple[int, int]:
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

    def _opened(self) -> Rounds:
        if self._rounds is None:
            store = Store.at(self._storage, create=True)
            rounds = Rounds(store, self.config, self.hall)
            with self._lock:
                for tell in self._told:
                    tell(rounds)
                self._rounds = rounds
        return self._rounds

    def _tell(self, tell: Callable[[Rounds], None]) -> None:
        with self._lock:
            if self._rounds is None:
                self._told.append(tell)
            else:
                tell(self._rounds)
