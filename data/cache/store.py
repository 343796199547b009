"""The node store: shards of any source, by one cache that all processes of a node share."""

import os
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from data.cache import quarantine
from data.cache.entry import Entry, ShardRef, url_key
from data.cache.folder import Folder
from data.cache.job import POLL_S, Job, Tools
from data.cache.metrics import Metrics
from data.cache.plans import Plan
from data.cache.room import Budget, sweep
from data.cache.shard import OpenShard
from data.cache.trouble import Trouble
from data.errors import DataError, FetchError
from data.source.address import Address, masked
from data.source.sources import Sources


class NodeStore:
    """Opens shards; thread-safe, and any number of processes may use one folder at a time.

    Args:
        folder: on a local disk; made if need be, for this user alone.
        budget_bytes: how large it may become. Shards that are open count and are not removed.
        sources: how to reach what is not local.
        free_reserve: bytes of the disk to leave free for others.
        cache_local: copy shards of mounted file systems such as NFS too, and not only read them
            where they lie.
        read_growing: give bytes of a shard while it is on its way. Where its hash is then found to
            be wrong, the next read says so. False: wait until all of it was verified.
        wait_bytes: read a range from the source rather than wait for a download that has so many
            bytes to go before it gets there.
        retry_cache_s: how long a cache whose disk failed is left alone.
        allow_shared: allow a folder on NFS, Lustre and the like.

    Raises DataError for a folder that cannot be used safely or numbers that make no sense. A disk
    that fails is no error: shards are then read from their source, see `metrics`.
    """

    def __init__(
        self,
        folder: Path,
        budget_bytes: int,
        *,
        sources: Sources | None = None,
        free_reserve: int = 1 << 30,
        cache_local: bool = False,
        read_growing: bool = True,
        wait_bytes: int = 64 << 20,
        retry_cache_s: float = 30.0,
        allow_shared: bool = False,
    ) -> None:
        if budget_bytes < 0 or free_reserve < 0 or wait_bytes < 0:
            raise DataError("budget_bytes, free_reserve and wait_bytes must not be negative")
        self.folder = Folder(Path(folder).absolute())
        self.sources = sources or Sources()
        self.metrics = Metrics()
        self.trouble = Trouble(self.folder.root, self.metrics, retry_cache_s)
        self.read_growing, self.wait_bytes = read_growing, wait_bytes
        self._budget = Budget(budget_bytes, free_reserve)
        self._cache_local, self._allow_shared = cache_local, allow_shared
        self._plan = Plan(self.folder.plans)
        self._closing = threading.Event()
        self._made = False
        self._reset()
        _stores.add(self)
        self._usable()

    def open(self, ref: ShardRef, *, when_s: float = 0.0) -> OpenShard:
        """The shard; comes back at once, while what is missing is fetched in the background.

        Args:
            when_s: seconds until it is needed: nothing that is needed sooner is removed for it.

        Raises ShardError or FetchError for a local shard that is not there or has another length;
        all else is raised by the read that needs it.
        """
        if self._closing.is_set():
            raise DataError("the store is closed")
        shard = OpenShard(self, ref)
        path = Address.parse(ref.url).local
        if path is not None and not self._cache_local:
            shard._use_file(_open_local(path, ref), None)
            self.metrics.add(hits=1)
        elif not self._usable():
            shard._use_source()
        elif not self._open_whole(shard):
            shard._use_job(self.start(ref, when_s))
        return shard

    def prefetch(self, ref: ShardRef, *, when_s: float | None = None) -> bool:
        """Fetch the whole shard into the cache now, in this thread.

        Args:
            when_s: seconds until it is needed; by default what the published plans say, and at the
                end of time if they say nothing.

        Returns False if the cache has no place for it. Raises FetchError.
        """
        if Address.parse(ref.url).local is not None and not self._cache_local:
            return True
        if not self._usable():
            return False
        with OpenShard(self, ref) as shard:
            if self._open_whole(shard):
                return True
        job = self._job(ref, self._due_s(ref) if when_s is None else time.monotonic() + when_s)
        if job[1]:
            job[0].run()
            self._forget_job(job[0])
        while not job[0].done:
            self.wait(POLL_S)
        if isinstance(job[0].error, DataError):
            raise type(job[0].error)(*job[0].error.args)
        if job[0].error is not None:
            raise job[0].error
        return not job[0].bypass

    def publish_plan(self, uses: Sequence[tuple[ShardRef | str, float]]) -> None:
        """Say what this process will read: (shard or its URL, seconds from now until it does).

        Replaces what it said before. It counts while this process lives.
        """
        now_s = time.monotonic()
        plan: dict[str, float] = {}
        for shard, in_s in uses:
            key = url_key(shard.url if isinstance(shard, ShardRef) else shard)
            plan[key] = min(now_s + in_s, plan.get(key, float("inf")))
        try:
            if self._usable():
                self._plan.publish(plan)
        except OSError as error:
            self.trouble.note(error)

    def report_damage(self, ref: ShardRef, reason: str) -> None:
        """As `OpenShard.quarantine`, for a shard that is not open."""
        with self.open(ref) as shard:
            shard.quarantine(reason)

    def close(self) -> None:
        """End downloads at their next byte and withdraw the plan. Open shards that are whole stay
        readable."""
        self._closing.set()
        self.sources.close()
        self._plan.withdraw()
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> "NodeStore":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self, ref: ShardRef, when_s: float = 0.0) -> Job:
        """The job that gets this shard, begun unless one is under way."""
        job, new = self._job(ref, time.monotonic() + when_s)
        if new:
            threading.Thread(
                target=self._run, args=(job,), name="hpckit-shard", daemon=True
            ).start()
        return job

    def wait(self, seconds: float) -> None:
        """Until a download of this process gets on, or `seconds` at most."""
        with self._changed:
            self._changed.wait(seconds)

    def report(self, ref: ShardRef, entry: Entry, fd: int, reason: str) -> None:
        """The whole shard `entry`, open at `fd`, is damaged. Raises DamagedShardError."""
        try:
            quarantine.report(
                self.folder,
                entry,
                fd,
                url=masked(ref.url),
                hash=ref.hash,
                reason=reason,
                metrics=self.metrics,
            )
        except OSError as error:
            self.trouble.note(error)

    def forget(self, entry: Entry | None) -> None:
        """Remove a shard that the disk does not give back."""
        try:
            if entry is not None:
                self.folder.remove(entry)
        except OSError as error:
            self.trouble.note(error)

    def _open_whole(self, shard: OpenShard) -> bool:
        """Whether the shard is in the cache; can be told without asking its source only where the
        manifest says its hash."""
        ref = shard.ref
        if ref.hash is None or ref.bytes is None:
            return False
        entry = Entry.of(ref, ref.bytes, None)
        try:
            fd = self.folder.open_whole(entry)
        except OSError as error:
            self.trouble.note(error)
            return False
        if fd is not None:
            shard._use_file(fd, entry)
            self.metrics.add(hits=1)
        return fd is not None

    def _run(self, job: Job) -> None:
        job.run()
        self._forget_job(job)

    def _job(self, ref: ShardRef, when_s: float) -> tuple[Job, bool]:
        """The job of `ref`, and whether it is a new one."""
        tools = Tools(
            self.folder,
            self.sources,
            self._budget,
            self.metrics,
            self.trouble,
            self._changed,
            self._closing,
        )
        with self._changed:
            job = self._jobs.get(ref)
            if job is not None:
                return job, False
            self._jobs[ref] = job = Job(tools, ref, when_s)
            return job, True

    def _forget_job(self, job: Job) -> None:
        with self._changed:
            self._jobs.pop(job.ref, None)

    def _due_s(self, ref: ShardRef) -> float:
        from data.cache.room import needed_s

        try:
            return needed_s(self.folder, url_key(ref.url), float("inf"))
        except OSError as error:
            self.trouble.note(error)
            return float("inf")

    def _usable(self) -> bool:
        """Whether the cache is to be used now; makes its folder, also after it vanished."""
        if self.trouble.pausing or self._budget.bytes == 0:
            return False
        try:
            if self._made and self.folder.root.is_dir():
                return True
            self.folder.make(self._allow_shared)
            sweep(self.folder)
        except OSError as error:
            self.trouble.note(error)
            return False
        self._made = True
        return True

    def _reset(self) -> None:
        """No jobs, no locks: at the beginning, and in a child after a fork, without threads."""
        self._jobs: dict[ShardRef, Job] = {}
        self._changed = threading.Condition()
        self.metrics.after_fork()


def _open_local(path: Path, ref: ShardRef) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise FetchError(masked(ref.url), f"cannot be opened: {error.strerror}") from error
    size = os.fstat(fd).st_size
    if ref.bytes is not None and size != ref.bytes:
        os.close(fd)
        raise FetchError(
            masked(ref.url),
            f"is {size} bytes long and its manifest says {ref.bytes}: index it again",
        )
    return fd


_stores: "weakref.WeakSet[NodeStore]" = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._reset()


os.register_at_fork(after_in_child=_after_fork)
