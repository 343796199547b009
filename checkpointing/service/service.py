"""The service itself, without sockets and processes: a hall for trainers and a worker."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from checkpointing.service.config import Config
from checkpointing.service.hall import Hall
from checkpointing.service.round import Rounds
from checkpointing.service.snapshots import Generation, Snapshot
from checkpointing.service.throttle import Throttled, TokenBucket
from checkpointing.service.worker import Worker
from checkpointing.storage import open_storage
from checkpointing.store.store import Store


class Service:
    """One node's, for one run of a store.

    Raises:
        StoreError: the store is out of reach.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.hall = config, Hall()
        storage = open_storage(config.url, options=config.options)
        if config.budget.bytes_per_s is not None:
            storage = Throttled(storage, TokenBucket(config.budget.bytes_per_s))
        self._store = Store.at(storage, create=True)
        self._rounds = Rounds(self._store, config, self.hall)
        self._worker = Worker(self.hall, self._rounds)
        self._worker.start()

    def put(self, snapshot: Snapshot) -> None:
        """A snapshot is whole in its slot; a deadline counts from now."""
        self._rounds.arrived(snapshot)
        self.hall.put(snapshot)

    def resume(
        self, generation: Generation, damaged: frozenset[str], distrusted: frozenset[bytes]
    ) -> None:
        """The generation goes on from what it has restored.

        Args:
            damaged: ids of checkpoints that failed to load.
            distrusted: packs in which damage was found.
        """
        self._rounds.distrust(damaged, distrusted)
        self.hall.resume(generation)

    def drain(self, seconds: float) -> None:
        """Write what there is, in no more than so long, and end the worker."""
        until_s = self.hall.drain(seconds)
        self._rounds.writer.hurry(until_s)
        self._worker.join(max(0.0, until_s - time.monotonic()))

    def close(self) -> None:
        """End, without waiting for what is being written."""
        self.drain(0.0)
        if self._worker.join(5.0):
            self._store.close()

    def status(self) -> dict[str, Any]:
        """Plain data for people and programs."""
        encode_rate, write_rate = self._rounds.writer.rates()
        step = self._worker.step
        return {
            "url": self._store.url,
            "run": self.config.run,
            "writing": step,
            "to_write_bytes": self._rounds.writer.progress() if step is not None else 0,
            "encode_bytes_per_s": encode_rate,
            "write_bytes_per_s": write_rate,
            **self.hall.status(),
            **asdict(self.hall.ledger),
        }
