"""The download jobs of one process: one for each shard that is being downloaded."""

import os
import threading
import weakref
from collections.abc import Callable

from data.cache.downloads.download_job import POLL_S, DownloadJob
from data.cache.downloads.shard_download import DownloadContext
from data.cache.files.cache_entry import ShardRef


class DownloadJobs:
    """The running download jobs of one process. Thread-safe; a forked child starts with none, since
    it has none of its parent's threads.

    Args:
        make_context: makes the `DownloadContext`, of the condition that jobs notify and the
            semaphore that limits them.
        downloads: number of simultaneous downloads; other jobs wait.
    """

    def __init__(
        self,
        make_context: Callable[[threading.Condition, threading.Semaphore], DownloadContext],
        downloads: int,
    ) -> None:
        self._make_context, self._downloads = make_context, downloads
        self.after_fork()
        _all.add(self)

    def start(self, ref: ShardRef, when_s: float) -> DownloadJob:
        """Return the running job of `ref`, or start one in the background.

        Args:
            when_s: when it is needed, by the monotonic clock.
        """
        job, new = self._get(ref, when_s)
        if new:
            name = "hpckit-shard"
            threading.Thread(target=self._run, args=(job,), name=name, daemon=True).start()
        return job

    def run(self, ref: ShardRef, when_s: float) -> DownloadJob:
        """Return the finished job of `ref`; it runs in this thread unless one is running
        already."""
        job, new = self._get(ref, when_s)
        if new:
            self._run(job)
        while not job.done:
            self.wait(POLL_S)
        return job

    def wait(self, seconds: float) -> None:
        """Wait until a job of this process has ended, at most `seconds`."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        """Wake all waiting threads, which then check again."""
        with self._changed:
            self._changed.notify_all()

    def after_fork(self) -> None:
        self._running: dict[ShardRef, DownloadJob] = {}
        self._changed = threading.Condition()
        self._turns = threading.Semaphore(self._downloads)

    def _get(self, ref: ShardRef, when_s: float) -> tuple[DownloadJob, bool]:
        with self._changed:
            job = self._running.get(ref)
            if job is not None and job.gets_wanted:
                return job, False  # the running job may fetch an older version than the current one
            context = self._make_context(self._changed, self._turns)
            self._running[ref] = job = DownloadJob(context, ref, when_s)
            return job, True

    def _run(self, job: DownloadJob) -> None:
        job.run()
        with self._changed:
            if self._running.get(job.ref) is job:
                del self._running[job.ref]


_all: "weakref.WeakSet[DownloadJobs]" = weakref.WeakSet()


def _after_fork() -> None:
    for jobs in list(_all):
        jobs.after_fork()


os.register_at_fork(after_in_child=_after_fork)
