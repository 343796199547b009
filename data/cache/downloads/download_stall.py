"""Detection of a download by another process that makes no progress."""

from dataclasses import dataclass


@dataclass
class DownloadStallWatch:
    """Watches the size of a file that another process downloads.

    Args:
        frozen_s: seconds without a change after which the download counts as frozen, such as by
            SIGSTOP or by a disk that hangs.
    """

    frozen_s: float
    _size: int | None = None
    _since_s: float | None = None

    def is_frozen(self, size: int | None, now_s: float) -> bool:
        """Return whether the size has not changed for `frozen_s`.

        Args:
            size: bytes that have arrived; None if there is no download.
        """
        if self._since_s is None or size != self._size:
            self._size, self._since_s = size, now_s
        return now_s - self._since_s >= self.frozen_s
