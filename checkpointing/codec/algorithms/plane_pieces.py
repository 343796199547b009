"""Decides into which pieces words are cut, and which pieces are worth coding: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from checkpointing.codec.algorithms.word_transforms import Words

# bits per byte: coding a plane with a higher entropy takes time and saves almost nothing
PAYS = 7.6
SPARSE = (0.6, 0.997)  # share of zeros for which a sparse byte plane is smaller
FEW = 512  # words: fewer are a poor sample of a plane, and hardly worth a frame


class PieceEncoding(Enum):
    """How a piece is stored."""

    STORED = "as it is"
    FRAME = "one zstd frame"
    SPARSE = "as in sparse.py"


@dataclass(frozen=True)
class PlanePiece:
    """Some adjacent bytes of every word."""

    start: int  # its lowest byte, counted from the word's lowest as 0
    width: int  # bytes: 1, 2, 4 or 8
    form: PieceEncoding = PieceEncoding.STORED  # any other encoding requires `width` 1

    @property
    def coded(self) -> bool:
        return self.form is not PieceEncoding.STORED


@dataclass(frozen=True)
class PlaneSample:
    """Statistics of a byte plane in a sample."""

    bits: float  # entropy per byte
    zeros: float  # share of bytes that are zero

    @property
    def pays(self) -> bool:
        return self.bits < PAYS

    @property
    def form(self) -> PieceEncoding:
        """How it is encoded if that saves space."""
        return PieceEncoding.SPARSE if SPARSE[0] <= self.zeros <= SPARSE[1] else PieceEncoding.FRAME


def sample_planes(sample: Words) -> list[PlaneSample]:
    """Returns samples of the byte planes of `sample`, the lowest first."""
    planes = sample.view(np.uint8).reshape(len(sample), sample.itemsize)
    return [_plane(np.bincount(plane, minlength=256)) for plane in planes.T]


def cut(planes: Sequence[PlaneSample]) -> list[PlanePiece]:
    """Returns the pieces of a word with these byte planes, the lowest first. Planes that are not
    worth coding stay together, in as few pieces as possible, aligned powers of two of bytes."""
    pieces: list[PlanePiece] = []
    at = 0
    while at < len(planes):
        if planes[at].pays:
            pieces.append(PlanePiece(at, 1, planes[at].form))
            at += 1
            continue
        width = len(planes)
        while at % width or any(plane.pays for plane in planes[at : at + width]):
            width //= 2
        pieces.append(PlanePiece(at, width))
        at += width
    return pieces


def _plane(counts: NDArray[np.intp]) -> PlaneSample:
    seen, total = counts[counts > 0], int(counts.sum())
    share = seen / total
    # entropy that a sample misses of the whole (Miller-Madow)
    missed = (len(seen) - 1) / (2 * total * math.log(2))
    return PlaneSample(float(-(share * np.log2(share)).sum()) + missed, float(counts[0] / total))
