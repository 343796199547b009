"""Where the time of a loader goes, and a one-line diagnosis of what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from data.read.batch import Batch, BatchTimes

Bound: TypeAlias = Literal["consumer", "download", "read", "decode", "loader", "start"]

WELL = 0.03
"""The share of its time that a consumer may wait without anything being wrong."""


@dataclass(frozen=True)
class Usage:
    """The time and counts of a loader since its beginning, or between two readings (`-`)."""

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    errors: int = 0
    """Samples that were left out or replaced."""
    wait_s: float = 0.0
    """Seconds that the consumer waited for batches."""
    elapsed_s: float = 0.0
    """Seconds from the first request for a batch to the last delivery."""
    read_s: float = 0.0
    """Seconds of all reader threads spent on reading, including waiting for downloads."""
    transform_s: float = 0.0
    """Seconds of all reader threads spent on transforms and collate."""
    download_s: float = 0.0
    """Seconds of all reader threads spent waiting for downloads."""
    grown: int = 0
    """Batches, after the first ones, for which the shared memory of a process had to grow."""
    ready: int = 0
    """Batches that were available when the last one was asked for."""
    past_s: float = 0.0
    """The part of `download_s` for samples that were read from their source, bypassing the
    cache."""
    no_room: int = 0
    """Shards for which the cache had no room."""
    disk_errors: int = 0
    """Errors of the caches' disks."""
    uncached: int = 0
    """Shards that were opened with no cache."""

    def __sub__(self, before: "Usage") -> "Usage":
        both = zip(vars(self).values(), vars(before).values(), strict=True)
        return replace(Usage(*(a - b for a, b in both)), ready=self.ready)

    def __add__(self, other: "Usage") -> "Usage":
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Usage(*(a + b for a, b in both))

    @property
    def wait_share(self) -> float:
        return self.wait_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def bound(self) -> Bound:
        """What keeps the consumer waiting, if it waits."""
        if self.wait_share <= WELL:
            return "consumer"
        if self.batches < 2:
            return "start"
        reading_s = max(0.0, self.read_s - self.download_s)
        times: dict[Bound, float] = {"download": self.download_s}
        times |= {"read": reading_s, "decode": self.transform_s}
        if not any(times.values()):  # of a loader of another library
            return "loader"
        return max(times, key=times.__getitem__)

    def diagnosis(self) -> str:
        """One line for users about what limits the loader."""
        share = f"{self.wait_share:.0%} of the time waiting for data"
        match self.bound:
            case "consumer":
                return f"the loader keeps up: {share}"
            case "start":
                return f"the first batch took {self.wait_s:.1f} s"
            case "download":
                return f"waiting for downloads: {share}; {self._of_downloads()}"
            case "read":
                return (
                    f"waiting for reads: {share}; use more threads, or a faster disk for the cache"
                )
            case "decode":
                return (
                    f"decode-bound: {share}; use more threads, or worker processes for Python code"
                )
            case "loader":
                return f"waiting for the loader: {share}; use more of its workers or prefetching"

    def _of_downloads(self) -> str:
        """Return the advice about downloads."""
        if self.past_s > self.download_s / 2:
            if self.disk_errors:
                return "most of the data bypasses the cache, whose disk fails: see the log"
            if self.no_room:
                return "most of the data bypasses the cache, which is too small: raise its bytes"
            if self.uncached:
                return "there is no cache: give one on the node's own disk"
        return "warm the cache, or prefetch more"


class LoaderMeter:
    """Sums up what one consumer receives. Its sums may be read at any time."""

    def __init__(self) -> None:
        self._usage = Usage()
        self._wait_s = self._elapsed_s = self._transform_s = 0.0  # for items of batches

    def delivered(
        self, batch: Batch, times: BatchTimes, *, wait_s: float, elapsed_s: float
    ) -> None:
        """Count one more delivered batch, and the seconds since the one before."""
        before = self._usage
        self._usage = Usage(
            before.batches + 1,
            before.samples + len(batch.keys),
            before.bytes + batch.bytes,
            before.errors + batch.errors,
            before.wait_s + wait_s,
            before.elapsed_s + elapsed_s,
            before.read_s + times.read_s,
            before.transform_s + times.transform_s,
            grown=before.grown + times.grown,
        )

    def read(self, batch: Batch, times: BatchTimes) -> None:
        """Count one more batch that was read, whose waiting time is not yet known."""
        self.delivered(batch, times, wait_s=0.0, elapsed_s=0.0)

    def waited(self, *, wait_s: float, elapsed_s: float, transform_s: float) -> None:
        """Count the waiting for an item of a batch that was read, part of which was work of the
        consumer's thread."""
        self._wait_s += wait_s
        self._elapsed_s += elapsed_s
        self._transform_s += transform_s

    def usage(self, *, ready: int, counts: Mapping[str, float]) -> Usage:
        """Return the usage so far; `counts` are the counters of the node stores, by their names."""
        of_stores = {
            name: counts[name] for name in ("past_s", "no_room", "disk_errors", "uncached")
        }
        items = Usage(wait_s=self._wait_s, elapsed_s=self._elapsed_s, transform_s=self._transform_s)
        return replace(
            self._usage + items,
            ready=ready,
            download_s=counts["wait_s"],
            **of_stores,  # type: ignore[arg-type]
        )
