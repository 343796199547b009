"""The decision whether a read waits for a download or requests its bytes from the source."""

from dataclasses import dataclass

LEAST_ROUND_TRIP_S = 0.05
"""Seconds: an answer that comes sooner than this is not worth reading the same bytes twice."""
LEAST_WATCHED_S = 0.02
"""Seconds that a download must have been watched before its rate is known."""
NEAR_BYTES = 1 << 20
"""A download that has begun brings this many bytes about as soon as a separate request would."""
_EARLY = 64  # the part of a shard that early reads may take in all: 1 / this
_FIRST = 16  # the largest first separate read of a shard: 1 / this
_AGAIN = 32  # the part of a shard that may be read separately in all: 1 / this


@dataclass
class DownloadPace:
    """The progress of a download as one reader sees it, from its first new bytes on."""

    began_s: float
    _size: int = 0
    _grows: bool = False

    def seen(self, size: int, now_s: float) -> tuple[float, float]:
        """Return (seconds watched, bytes per second), given that `size` bytes have arrived by
        now."""
        if size > self._size and not self._grows:
            self._size, self.began_s, self._grows = size, now_s, True
        watched_s = now_s - self.began_s
        return watched_s, (size - self._size) / watched_s if watched_s > 0 else 0.0


def is_quicker(
    lead: int, watched_s: float, rate: float, round_trip_s: float, *, early: bool = False
) -> bool:
    """Return whether a separate request would answer before the download arrives there.

    A download that has brought nothing yet is given the time of three requests, since it makes two.

    Args:
        lead: bytes that the download still has to bring before the wanted ones.
        watched_s, rate: as of its `DownloadPace`.
        round_trip_s: the duration of one request to its source.
        early: as of `is_early`. If the wanted bytes are far ahead, a batch does not wait until the
            rate of the download is known.
    """
    if early and lead > NEAR_BYTES:
        return True
    least_s = max(round_trip_s, LEAST_ROUND_TRIP_S)
    if rate <= 0:
        return watched_s >= 3 * least_s
    return watched_s >= max(3 * round_trip_s, LEAST_WATCHED_S) and lead > rate * least_s


def is_early(size: int, before: int, whole: int, nodes: int = 1) -> bool:
    """Return whether `size` bytes are among the first that are read of a shard of `whole` bytes
    during its download, after `before` bytes were: the first batch is made of such reads.

    Args:
        nodes: the nodes that share the bytes which may be requested separately.
    """
    return before == 0 or before + size <= whole // (_EARLY * nodes)


def is_affordable(size: int, before: int, whole: int, nodes: int = 1) -> bool:
    """Return whether `size` bytes of a shard of `whole` may be requested separately, after `before`
    were.

    The first read may, so that the first batch comes soon; all of them add little to the traffic of
    an epoch. `nodes` as for `is_early`.
    """
    if before == 0:
        return size <= whole // (_FIRST * nodes)
    return before + size <= whole // (_AGAIN * nodes)
