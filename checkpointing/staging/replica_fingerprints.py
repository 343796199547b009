"""Fingerprints of cells that several ranks hold, taken while training continues, which are compared
with those of the other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from torch import Tensor

from checkpointing.format.replica_differences import NOT_TAKEN
from checkpointing.staging.fingerprints import TensorSample, fingerprint
from checkpointing.staging.overlap_guard import Versions, is_counted

SMALL_BYTES = 64 << 10
"""Tensors of fewer bytes are copied before `save` returns, and their cells are not sampled."""
_STRIDE = 65
"""Of the pieces of larger cells, one in so many is read when `save` is called, and compared with
what it is when the fingerprint is taken."""


@dataclass(frozen=True)
class ComparedCells:
    """Cells that other ranks also hold, of which a fingerprint is taken.

    Attributes:
        tensor: the live tensor that the cells are part of.
        is_early: they may change as soon as `save` returns.
    """

    name: str
    tensor: Tensor
    cells: Sequence[Tensor]
    is_early: bool


class ReplicaFingerprints:
    """Takes the fingerprints of the cells that are compared with other ranks' replicas, in their
    order."""

    def __init__(
        self,
        compared: Sequence[ComparedCells],
        phase: int = 0,
        helper: Executor | None = None,
    ) -> None:
        """Take the fingerprints of the cells that may change as soon as `save` returns.

        Args:
            phase, helper: as of `TensorSample`.
        """
        self._found = [fingerprint(one.cells) if one.is_early else NOT_TAKEN for one in compared]
        late = [number for number, one in enumerate(compared) if not one.is_early]
        self._late = {number: compared[number].cells for number in late}
        self._versions = Versions(
            (str(number), compared[number].tensor)
            for number in late
            if is_counted(compared[number].tensor)
        )
        flat = [
            (number, one)
            for number in late
            for one in compared[number].cells
            if one.is_cpu and one.is_contiguous() and one.nbytes > SMALL_BYTES
        ]
        self._owners, self._sampled = [number for number, _ in flat], [one for _, one in flat]
        self._sample = TensorSample(self._sampled, _STRIDE, phase, helper)

    def take(self) -> list[int]:
        """Take the other fingerprints and return all; `NOT_TAKEN` for cells that were written to
        since."""
        for number, held in self._late.items():
            self._found[number] = fingerprint(held)
        changed = {self._owners[i] for i in self._sample.changed(self._sampled)}
        for number in changed | set(map(int, self._versions.changed())):
            self._found[number] = NOT_TAKEN
        return self._found


def take_fingerprints(compared: Sequence[ComparedCells]) -> list[int]:
    """Returns the fingerprints of the cells, in their order, computed before it returns."""
    return [fingerprint(one.cells) for one in compared]
