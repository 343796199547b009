"""NCCL's flight recorder, which writes the newest collectives of each rank to the logs of the
generation.

torch's process group writes them when a collective times out, and on request through a pipe, as is
done for ranks that hang before they are ended. The variables are those of ProcessGroupNCCL
(docs.pytorch.org, torch_nccl_environment_variables), of which torch 2.13 has renamed two to
`TORCH_FR_...` and still reads the others. The files are pickles for torch's own analyser
(`python -m torch.distributed.flight_recorder.fr_trace`); hpckit does not read them.
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
"""Number of collectives that each rank remembers."""
PATIENCE_S = 3.0
"""Seconds for ranks to write them."""
_POLL_S = 0.05


class FlightRecorder:
    """The flight recorders of one node's ranks in one generation."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._pipes = Path(tempfile.mkdtemp(prefix="hpckit-nccl-"))  # only this user has access

    def variables(self) -> dict[str, str]:
        """Returns the environment variables for the ranks."""
        return {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": str(COLLECTIVES),
            "TORCH_FR_BUFFER_SIZE": str(COLLECTIVES),
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(self._logs / "nccl-rank"),
            "TORCH_FR_DUMP_TEMP_FILE": str(self._logs / "nccl-rank"),
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(self._pipes / "rank"),
        }

    def dump(self, ranks: Iterable[int]) -> list[Path]:
        """Has these ranks write their collectives, and returns the files that were written in
        time."""
        requested = [self._logs / f"nccl-rank{rank}" for rank in ranks if self._request_dump(rank)]
        deadline = time.monotonic() + PATIENCE_S
        while not all(map(_is_written, requested)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return [path for path in requested if _is_written(path)]

    def close(self) -> None:
        """Removes the pipes."""
        shutil.rmtree(self._pipes, ignore_errors=True)

    def _request_dump(self, rank: int) -> bool:
        """Requests a dump; returns False if no process reads the rank's pipe."""
        try:
            pipe = os.open(self._pipes / f"rank{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:  # there is no pipe yet, or no reader
            log.info("rank %d wrote no record of NCCL's flight recorder: %s", rank, error)
            return False
        try:
            os.write(pipe, b"1")
        finally:
            os.close(pipe)
        return True


def _is_written(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
