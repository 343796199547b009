"""The ledger: each rank writes down the keys of the samples that it took in each step.

Debugging aid (`debug.ledger`): what was really seen is counted from it, not assumed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)


class SampleLedgerWriter:
    """Appends to one file per generation and rank; a line is whole or not there."""

    def __init__(self, folder: Path, generation: int, attempt: int, rank: int) -> None:
        folder.mkdir(exist_ok=True)
        self._attempt = attempt
        path = folder / f"g{generation:03d}-rank{rank}.jsonl"
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        self._file = path.open("a", encoding="utf-8")
        if torn:  # by a kill in the attempt before
            self._file.write("\n")

    def enter(self, step: int, positions: Sequence[int], keys: Sequence[str]) -> None:
        """Step `step` (from 1) takes the samples `keys`, which lie at `positions` of the stream.

        A full disk costs the entry, not the run: it is missing from the count, and said in the log.
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
        with suppress(OSError):  # said already
            self._file.close()
