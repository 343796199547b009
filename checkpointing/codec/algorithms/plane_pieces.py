"""Into which pieces words are cut, and which pieces are worth coding: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from checkpointing.codec.algorithms.word_transforms import Words

PAYS = 7.6  # bits per byte: coding a plane with more costs time and saves next to nothing
SPARSE = (0.6, 0.997)  # share of zeros between which coding them apart is smaller
FEW = 512  # words: fewer say too little about a plane, and are hardly worth a frame


class PieceEncoding(Enum):
    """How a piece is stored."""

    STORED = "as it is"
    FRAME = "one zstd frame"
    SPARSE = "as in sparse.py"


@dataclass(frozen=True)
class PlanePiece:
    """Some neighbouring bytes of every word."""

    start: int  # its lowest byte, 0 being the word's lowest
    width: int  # bytes: 1, 2, 4 or 8
    form: PieceEncoding = PieceEncoding.STORED  # any other one takes `width` 1

    @property
    def coded(self) -> bool:
        return self.form is not PieceEncoding.STORED


@dataclass(frozen=True)
class PlaneSample:
    """What a sample shows of a byte plane."""

    bits: float  # entropy per byte
    zeros: float  # share of bytes

    @property
    def pays(self) -> bool:
        return self.bits < PAYS

    @property
    def form(self) -> PieceEncoding:
        """How it is coded if it pays."""
        return PieceEncoding.SPARSE if SPARSE[0] <= self.zeros <= SPARSE[1] else PieceEncoding.FRAME


def look(sample: Words) -> list[PlaneSample]:
    """The byte planes of `sample`, the lowest first."""
    planes = sample.view(np.uint8).reshape(len(sample), sample.itemsize)
    return [_plane(np.bincount(plane, minlength=256)) for plane in planes.T]


def cut(planes: Sequence[PlaneSample]) -> list[PlanePiece]:
    """The pieces of a word with these byte planes, the lowest first. Those that do not pay stay
    together: as few pieces as possible, of aligned powers of two of bytes."""
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
    missed = (len(seen) - 1) / (2 * total * math.log(2))  # by a sample, of the whole (Miller-Madow)
    return PlaneSample(float(-(share * np.log2(share)).sum()) + missed, float(counts[0] / total))
