"""The samples of a shard of tables: rows of groups that are unpacked and kept for the next ones."""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from data.cache.cached_shard import CachedShard
from data.errors import ShardError
from data.index.shard.shard_index import ShardIndex
from data.index.table_files.table_file import TableFile
from data.index.table_files.table_manifest import TableShard
from data.read.shards.local_file_samples import Sample
from data.read.shards.shard_samples import Check, ShardSamples

GROUP_BYTES = 1 << 30
"""The bytes of unpacked groups that a process keeps, besides the one that is read."""
_AGAIN = 64  # groups unpacked again, after which it is considered whether that is too often
_ROWS = 16  # that are read of each unpacked group at least, or half of it
_DROPPED = 1 << 16  # groups that are remembered as dropped

_log = logging.getLogger(__name__)


class TableSamples(ShardSamples):
    """The rows of one shard of a `TableManifest`: a sample has the columns as members, with the
    values that pyarrow gives.

    Args:
        rows: the groups of the shard.
    """

    def __init__(
        self,
        rows: TableShard,
        index: ShardIndex,
        reopen: Callable[[], CachedShard],
        url: str,
        shard: CachedShard,
        check: Check = "auto",
    ) -> None:
        super().__init__(index, reopen, url, shard, check)
        groups = rows.table.groups[rows.first : rows.end]
        self._rows = rows
        self._begins = np.array([0, *accumulate(group.rows for group in groups)])

    def _read(self, i: int) -> tuple[Sample, int]:
        number = int(np.searchsorted(self._begins, i, side="right")) - 1
        group = self._rows.first + number
        rows = UNPACKED_GROUPS.get(self._rows.table, group)
        try:
            (fields,) = rows.slice(i - int(self._begins[number]), 1).to_pylist()
        except (ValueError, OverflowError) as error:
            problem = f"row {self._key(i)} cannot be read: {error}"
            raise ShardError(self._url, 0, problem) from error
        size = self._rows.table.groups[group].bytes // max(1, rows.num_rows)
        return {"__key__": self._key(i), "__url__": self._url, **fields}, size


class UnpackedGroups:
    """The groups that were used last, of all tables of the process. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, str | None, int], Any] = OrderedDict()
        self._dropped: OrderedDict[tuple[str, str | None, int], None] = OrderedDict()
        self._bytes = self._reads = self._loads = self._rows = self._again = 0
        self._lock = threading.Lock()
        self._unpacking: dict[tuple[str, str | None, int], threading.Lock] = {}

    def get(self, table: TableFile, group: int) -> Any:
        """Return the rows of a group. Raises ShardError."""
        name = (table.file.path, table.file.tag, group)
        with self._lock:
            self._reads += 1
            if (found := self._kept.get(name)) is not None:
                self._kept.move_to_end(name)
                return found
            unpacking = self._unpacking.setdefault(name, threading.Lock())
        with unpacking:  # threads that need the same group wait for the first one
            if (found := self._kept.get(name)) is not None:
                return found
            try:
                rows = table.rows(group)
                self._keep(name, rows, table.file.path)
            finally:
                self._unpacking.pop(name, None)
        return rows

    def _keep(self, name: tuple[str, str | None, int], rows: Any, path: str) -> None:
        with self._lock:
            if name not in self._kept:
                self._kept[name] = rows
                self._bytes += rows.nbytes
            self._loads += 1
            self._rows += rows.num_rows
            if name in self._dropped:
                self._note_again(path)
            while self._bytes > self.most_bytes and len(self._kept) > 1:
                oldest, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.nbytes
                self._dropped[oldest] = None
                if len(self._dropped) > _DROPPED:
                    self._dropped.popitem(last=False)

    def _note_again(self, path: str) -> None:
        """Note that a group is unpacked again, and warn once if few rows are read of each."""
        self._again += 1
        if self._again == _AGAIN and self._reads < min(_ROWS * self._loads, self._rows // 2):
            _log.warning(
                "%s: groups of rows are unpacked again for each %.1f rows, as the groups that are "
                "read at a time have more than the %d bytes that are kept: use fewer streams or a "
                "smaller window, or write smaller row groups",
                path,
                self._reads / self._loads,
                self.most_bytes,
            )

    def after_fork(self) -> None:
        """Forget all in a forked child: a thread that does not exist there may hold the lock."""
        self._kept, self._bytes = OrderedDict(), 0
        self._lock, self._unpacking = threading.Lock(), {}


UNPACKED_GROUPS = UnpackedGroups(GROUP_BYTES)
os.register_at_fork(after_in_child=UNPACKED_GROUPS.after_fork)
