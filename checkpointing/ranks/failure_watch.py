"""Watches for a failure on any rank while all ranks are busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from checkpointing.errors import OtherRankError
from checkpointing.ranks.rank_group import RankGroup, first_reasons

POLL_S, MAX_POLL_S = 0.01, 0.2  # seconds between exchanges among the ranks, at first and at most


class FailureWatch:
    """Watches over something that ranks do together, so that a rank that fails does not keep the
    others waiting.

    Must be created and finished on all ranks. In between nothing else may use the control group,
    which this uses from its own thread.

    Args:
        stop: called from that thread with what went wrong, as soon as it is known.
    """

    def __init__(self, ranks: RankGroup, stop: Callable[[str], None]) -> None:
        self._ranks, self._stop = ranks, stop
        # whether this rank is done, and why it failed
        self._mine: tuple[bool, str | None] = (False, None)
        self._failed: str | None = None  # why any rank failed
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)
        if ranks.control is not None:
            self._thread.start()

    def finish(self, failed: str | None) -> str | None:
        """Return once all ranks have finished, or one has failed.

        Args:
            failed: why this rank has failed; None: it has not.

        Returns:
            What failed on which ranks; None: nothing.
        """
        self._mine = (True, failed)
        if self._ranks.control is None:
            return failed
        self._thread.join()
        return self._failed

    def _look(self) -> None:
        poll_s = POLL_S
        while True:
            try:
                gathered = self._ranks.all_gather(self._mine, self._ranks.control)
            except OtherRankError as error:
                self._fail(str(error))
                return
            failures = [
                f"rank {rank}: {why}" for rank, (_, why) in enumerate(gathered) if why is not None
            ]
            if failures:
                self._fail(first_reasons(failures))
                return
            if all(is_over for is_over, _ in gathered):
                return
            time.sleep(poll_s)
            poll_s = min(2 * poll_s, MAX_POLL_S)

    def _fail(self, why: str) -> None:
        self._failed = why
        self._stop(why)
