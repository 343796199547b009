"""Whether bytes of a shard that is on its way are waited for, or read from its source by a request
of their own."""

from dataclasses import dataclass

LEAST_ROUND_TRIP_S = 0.05
"""To answer sooner than this is not worth a second reading of the same bytes."""
LEAST_WATCHED_S = 0.02
"""How fast a download gets on is not known before, though it does."""
NEAR_BYTES = 1 << 20
"""A download that has begun brings so much about as soon as another request would."""
_EARLY = 64  # one part of so many of a shard
_FIRST = 16  # a first read of one part of so many of a shard at most
_AGAIN = 32  # of all of them together


@dataclass
class DownloadPace:
    """How fast a download gets on, as one reader sees it: since its first new bytes."""

    began_s: float
    _size: int = 0
    _grows: bool = False

    def seen(self, size: int, now_s: float) -> tuple[float, float]:
        """(seconds that it was watched, bytes per second), now that `size` bytes are there."""
        if size > self._size and not self._grows:
            self._size, self.began_s, self._grows = size, now_s, True
        watched_s = now_s - self.began_s
        return watched_s, (size - self._size) / watched_s if watched_s > 0 else 0.0


def is_quicker(
    lead: int, watched_s: float, rate: float, round_trip_s: float, *, early: bool = False
) -> bool:
    """Whether a request of its own answers before a download has got as far.

    A download that nothing has come of yet is given the time of three requests: it makes two.

    Args:
        lead: bytes that the download has to bring before those that are wanted.
        watched_s, rate: of its `DownloadPace`.
        round_trip_s: of one request to its source.
        early: as of `is_early`. If what is wanted is far, a batch is not made to wait until it is
            known how fast the download gets on.
    """
    if early and lead > NEAR_BYTES:
        return True
    least_s = max(round_trip_s, LEAST_ROUND_TRIP_S)
    if rate <= 0:
        return watched_s >= 3 * least_s
    return watched_s >= max(3 * round_trip_s, LEAST_WATCHED_S) and lead > rate * least_s


def is_early(size: int, before: int, whole: int) -> bool:
    """Whether `size` bytes belong to the first ones that are read of a shard of `whole` bytes while
    it is on its way, after `before`: a first batch is made of such."""
    return before == 0 or before + size <= whole // _EARLY


def is_affordable(size: int, before: int, whole: int) -> bool:
    """Whether `size` bytes of a shard of `whole` may be read by themselves, after `before` were:
    the first read may, so that the first batch is there soon; all of them hardly add to an epoch.
    """
    return size <= whole // _FIRST if before == 0 else before + size <= whole // _AGAIN
