"""The sample ledger (`debug.ledger`), in which each rank writes the keys of its samples.

It is a debugging aid: it shows which samples a run was really trained on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)


class SampleLedgerWriter:
    """A writer that appends to one file per generation and rank; each line is written whole or not
    at all."""

    def __init__(self, folder: Path, generation: int, attempt: int, rank: int) -> None:
        folder.mkdir(exist_ok=True)
        self._attempt = attempt
        path = folder / f"g{generation:03d}-rank{rank}.jsonl"
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        self._file = path.open("a", encoding="utf-8")
        if torn:  # by a kill in the previous attempt
            self._file.write("\n")

    def write(self, step: int, positions: Sequence[int], keys: Sequence[str]) -> None:
        """Write that step `step` (from 1) takes the samples `keys`, which lie at `positions` of the
        stream.

        If the disk is full, this entry is missing from the ledger, an error is logged, and the run
        continues.
        """
        line = {
            "step": step,
            "attempt": self._attempt,
            "positions": list(positions),
            "keys": list(keys),
        }
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            log.error("step %d is not in the ledger: %s", step, error)

    def close(self) -> None:
        with suppress(OSError):  # was logged already
            self._file.close()
