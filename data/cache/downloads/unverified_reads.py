"""Bytes that readers got before the hash of their shard was checked: if it proves wrong, the reader
is notified by an error."""

import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from data.cache.downloads.download_job import POLL_S, DownloadJob
from data.cache.files.cache_entry import DAMAGED, WHOLE
from data.cache.files.file_handle import FileHandle
from data.errors import DamagedShardError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _UnverifiedRead:
    url: str
    job: DownloadJob
    file: FileHandle | None
    """The growing file that was read; None for a range from its source."""

    def verdict(self) -> Literal["right", "wrong", "never", "later"]:
        done = self.job.done  # read before the mode is checked, which is set first
        mode = None if self.file is None else self.file.mode
        if mode == DAMAGED or self.job.got_wrong_bytes:
            return "wrong"
        if mode == WHOLE:
            return "right"
        if done and mode is None and not self.job.bypass and self.job.error is None:
            return "right"
        return "never" if done else "later"


class UnverifiedReads:
    """The unverified reads of one node store in one process. Thread-safe."""

    def __init__(self) -> None:
        self.after_fork()
        _all.add(self)

    def served(self, url: str, job: DownloadJob, file: FileHandle | None) -> None:
        """Note that bytes of a shard were returned which `job` will verify."""
        key = (id(job), id(file))
        if key not in self._reads:
            with self._lock:
                self._reads[key] = _UnverifiedRead(url, job, file)

    def check(self) -> None:
        """Check the shards verified so far. Raises DamagedShardError, once, if returned bytes were
        wrong."""
        if not self._reads:
            return
        wrong: str | None = None
        with self._lock:
            for key, one in list(self._reads.items()):
                verdict = one.verdict()
                if verdict != "later":
                    del self._reads[key]
                if verdict == "wrong":
                    wrong = one.url
                elif verdict == "never" and one.job.ref.hash is not None:
                    _log.info("shard %s: it was read in part, so its hash was not checked", one.url)
        if wrong is not None:
            raise DamagedShardError(
                wrong,
                "some of it was read during its download, which then proved to be damaged or"
                " another version: do not use what was read from it in earlier batches; resume "
                "from a state that was saved before them",
            )

    def settle(self, wait: Callable[[float], None]) -> None:
        """Wait until all returned bytes are verified. Raises as `check` does."""
        self.check()
        while self._reads:
            wait(POLL_S)
            self.check()

    def after_fork(self) -> None:
        """Forget the parent's reads, and replace the lock, which a thread of it may have held."""
        self._reads: dict[tuple[int, int], _UnverifiedRead] = {}
        self._lock = threading.Lock()


_all: "weakref.WeakSet[UnverifiedReads]" = weakref.WeakSet()


def _after_fork() -> None:
    for one in list(_all):
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork)
