"""The jobs of one process: one for each shard that is on its way."""

import os
import threading
import weakref
from collections.abc import Callable

from data.cache.downloads.download_context import DownloadContext
from data.cache.downloads.download_job import POLL_S, DownloadJob
from data.cache.files.cache_entry import ShardRef


class DownloadJobs:
    """Thread-safe; begins anew in a child after a fork, which has no threads of its parent.

    Args:
        make_tools: gives jobs what they share, with the condition that they notify and the turns
            that they take.
        downloads: jobs that download at a time; the others wait for their turn.
    """

    def __init__(
        self,
        make_tools: Callable[[threading.Condition, threading.Semaphore], DownloadContext],
        downloads: int,
    ) -> None:
        self._make_tools, self._downloads = make_tools, downloads
        self.after_fork()
        _all.add(self)

    def start(self, ref: ShardRef, when_s: float) -> DownloadJob:
        """The job that gets `ref`, begun in the background unless one is under way.

        Args:
            when_s: when it is needed, by the monotonic clock.
        """
        job, new = self._get(ref, when_s)
        if new:
            name = "hpckit-shard"
            threading.Thread(target=self._run, args=(job,), name=name, daemon=True).start()
        return job

    def run(self, ref: ShardRef, when_s: float) -> DownloadJob:
        """The job that gets `ref`, at its end; run in this thread unless it is under way."""
        job, new = self._get(ref, when_s)
        if new:
            self._run(job)
        while not job.done:
            self.wait(POLL_S)
        return job

    def wait(self, seconds: float) -> None:
        """Until a job of this process gets on, or `seconds` at most."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        """All who wait look again."""
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
                return job, False  # else it may get an older version than there is now
            tools = self._make_tools(self._changed, self._turns)
            self._running[ref] = job = DownloadJob(tools, ref, when_s)
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
