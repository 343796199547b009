"""Reads and writes the head of byte planes: how words were transformed and cut. byte_planes.py
describes it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from checkpointing.codec.algorithms.plane_pieces import PieceEncoding, PlanePiece
from checkpointing.codec.algorithms.word_transforms import WordTransform
from checkpointing.codec.word_layout import WORDS
from checkpointing.errors import DamagedError
from checkpointing.storage.interface import Buffer

_FIXED, _LENGTH = 4, 4  # bytes
_CHANGES = frozenset(WordTransform)


@dataclass(frozen=True)
class PlaneHeader:
    """The content of a body's head."""

    pieces: Sequence[PlanePiece]  # the lowest piece first
    change: WordTransform
    lengths: Sequence[int]  # bytes of each coded piece

    @property
    def size(self) -> int:
        """The bytes of the head itself."""
        return head_size(self.pieces)

    def stored_size(self, count: int) -> int:
        """Returns the bytes of the pieces that are not coded, for `count` words."""
        return count * sum(piece.width for piece in self.pieces if not piece.coded)

    def body_size(self, count: int) -> int:
        """Returns the bytes of the whole body of `count` words."""
        return self.size + self.stored_size(count) + sum(self.lengths)


def head_size(pieces: Sequence[PlanePiece]) -> int:
    """Returns the bytes of the head of words cut into `pieces`."""
    return _FIXED + _LENGTH * sum(piece.coded for piece in pieces)


def dump_head(head: PlaneHeader) -> bytes:
    cuts = _mask(head.pieces, *PieceEncoding)
    coded = _mask(head.pieces, PieceEncoding.FRAME, PieceEncoding.SPARSE)
    sparse = _mask(head.pieces, PieceEncoding.SPARSE)
    return struct.pack(f"<4B{len(head.lengths)}I", cuts, coded, sparse, head.change, *head.lengths)


def parse_head(body: Buffer, word: int) -> PlaneHeader:
    """Returns the head at the start of `body`, for words of `word` bytes.

    Raises:
        DamagedError: there is no valid head.
    """
    if len(body) < _FIXED:
        raise DamagedError(f"{len(body)} bytes are too few for the head of byte planes")
    cuts, coded, sparse, change = body[:_FIXED]
    nested = not coded & ~cuts and not sparse & ~coded
    if not cuts & 1 or cuts >> word or not nested or change not in _CHANGES:
        raise DamagedError(f"{bytes(body[:_FIXED]).hex()} is not a head of byte planes")
    pieces = _pieces(cuts, coded, sparse, word)
    if not all(map(_allowed, pieces)):
        raise DamagedError(
            f"{bytes(body[:_FIXED]).hex()} divides words in a way that is not allowed"
        )
    if len(body) < head_size(pieces):
        raise DamagedError(f"{len(body)} bytes are too few for the head of byte planes")
    lengths = struct.unpack_from(f"<{coded.bit_count()}I", body, _FIXED)
    return PlaneHeader(pieces, WordTransform(change), lengths)


def _mask(pieces: Sequence[PlanePiece], *forms: PieceEncoding) -> int:
    return sum(1 << piece.start for piece in pieces if piece.form in forms)


def _pieces(cuts: int, coded: int, sparse: int, word: int) -> list[PlanePiece]:
    starts = [i for i in range(word) if cuts >> i & 1]
    forms = [
        PieceEncoding.SPARSE
        if sparse >> i & 1
        else PieceEncoding.FRAME
        if coded >> i & 1
        else PieceEncoding.STORED
        for i in starts
    ]
    widths = [end - start for start, end in zip(starts, [*starts[1:], word], strict=True)]
    return [PlanePiece(*piece) for piece in zip(starts, widths, forms, strict=True)]


def _allowed(piece: PlanePiece) -> bool:
    if piece.coded:
        return piece.width == 1
    return piece.width in WORDS and piece.start % piece.width == 0
