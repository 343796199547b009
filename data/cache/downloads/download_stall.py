"""Whether another process's download still gets on."""

from dataclasses import dataclass


@dataclass
class DownloadStallWatch:
    """Looks at the size of what another process downloads.

    Args:
        frozen_s: seconds without a change after which it counts as frozen: by SIGSTOP, by a disk
            that hangs, or as good as that.
    """

    frozen_s: float
    _size: int | None = None
    _since_s: float | None = None

    def is_frozen(self, size: int | None, now_s: float) -> bool:
        """Whether nothing has changed for so long.

        Args:
            size: bytes that are there; None: there is no download.
        """
        if self._since_s is None or size != self._size:
            self._size, self._since_s = size, now_s
        return now_s - self._since_s >= self.frozen_s
