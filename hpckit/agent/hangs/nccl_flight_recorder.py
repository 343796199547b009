"""NCCL's flight recorder: the newest collectives of each rank, in the logs of the generation.

torch's process group writes them when a collective runs out of time, and when it is told to through
a pipe, as is done for ranks that hang before they are ended. The variables are those of
ProcessGroupNCCL (docs.pytorch.org, torch_nccl_environment_variables).
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)

COLLECTIVES = 2000
"""That each rank remembers."""
PATIENCE_S = 3.0
"""Seconds for ranks to write them down."""
_POLL_S = 0.05


class FlightRecorder:
    """Of one node's ranks, in one generation."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._pipes = Path(tempfile.mkdtemp(prefix="hpckit-nccl-"))  # this user's alone

    def variables(self) -> dict[str, str]:
        """For the environment of the ranks."""
        return {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": str(COLLECTIVES),
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(self._logs / "nccl-rank"),
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(self._pipes / "rank"),
        }

    def dump(self, ranks: Iterable[int]) -> list[Path]:
        """Have these ranks write down theirs; the files that there are then."""
        asked = [self._logs / f"nccl-rank{rank}" for rank in ranks if self._ask(rank)]
        deadline = time.monotonic() + PATIENCE_S
        while not all(map(_is_written, asked)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return [path for path in asked if _is_written(path)]

    def close(self) -> None:
        """Remove the pipes."""
        shutil.rmtree(self._pipes, ignore_errors=True)

    def _ask(self, rank: int) -> bool:
        """Whether somebody listens."""
        try:
            pipe = os.open(self._pipes / f"rank{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:  # no pipe yet, or nobody at its other end
            log.info("rank %d has no flight recorder: %s", rank, error)
            return False
        try:
            os.write(pipe, b"1")
        finally:
            os.close(pipe)
        return True


def _is_written(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
