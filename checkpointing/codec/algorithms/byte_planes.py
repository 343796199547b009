"""Codec PLANES, and the body of DELTA and ROWS: stores bytes of equal significance together.

Every word of `w` bytes is transformed (see word_transforms.py) and cut into the same pieces. A
piece that shrinks is one byte wide, a byte plane, and coded; the other pieces are stored as they
are. With `n` words, `c` coded pieces, numbers little-endian:

    0        u8   cuts: bit i is set if a piece begins at byte i of a word, byte 0 the lowest; a
                  piece ends where the next one begins, or the word. Bit 0 is set. A piece that is
                  not coded has 1, 2, 4 or 8 bytes and begins at a multiple of that
    1        u8   coded: bit i is set if the piece that begins at byte i is coded; it has 1 byte
    2        u8   sparse: bit i is set if the piece that begins at byte i is coded, and as a sparse
                  byte plane
    3        u8   change: 0 PLAIN, 1 ROTATED, 2 ZIGZAG
    4        u32  x c: stored bytes of each coded piece, lowest first
    4 + 4c   ...  the pieces that are not coded, lowest first: n numbers of the piece's width each
    ...      ...  the coded pieces, lowest first: a sparse byte plane (see sparse_planes.py), or one
                  zstd frame with content size that holds the n bytes

PLANES has change 0 or 1, DELTA change 2. No words at all are an empty blob.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from checkpointing.codec.algorithms.plane_header import (
    PlaneHeader,
    dump_head,
    head_size,
    parse_head,
)
from checkpointing.codec.algorithms.plane_pieces import (
    FEW,
    PieceEncoding,
    PlanePiece,
    PlaneSample,
    cut,
    sample_planes,
)
from checkpointing.codec.algorithms.sparse_planes import decode_sparse, encode_sparse
from checkpointing.codec.algorithms.word_transforms import (
    Words,
    WordSeries,
    WordTransform,
    temporary,
)
from checkpointing.codec.algorithms.zstd_frames import compress_plane, decompress
from checkpointing.codec.thread_buffers import thread_buffer
from checkpointing.errors import DamagedError
from checkpointing.storage.interface import Buffer

# bytes of words at a time: fits a core's cache, and is much more work than the calls
_BLOCK = 512 << 10
_WINDOWS, _WINDOW = 64, 64  # number of windows to sample before deciding, and words in each
_View: TypeAlias = tuple[PlanePiece, Words]  # a piece of all words


def encode_body(series: WordSeries) -> Buffer:
    """Returns the body described above, larger than the words by at most 240 bytes plus a
    ten-thousandth."""
    if not len(series.words):
        return b""
    pieces = cut(_sampled(series))
    if series.change is WordTransform.ROTATED and not any(piece.coded for piece in pieces):
        series = WordSeries(series.words, WordTransform.PLAIN)
    out, coded = _encode_pieces(series, pieces)
    head = PlaneHeader(pieces, series.change, [len(data) for data in coded])
    # a new array without other references
    out.resize(head.body_size(len(series.words)), refcheck=False)
    body, at = out.data, head.size + head.stored_size(len(series.words))
    body[: head.size] = dump_head(head)
    for data in coded:
        body[at : at + len(data)] = data
        at += len(data)
    return body


def decode_body(body: Buffer, words: Words, base: Words | None = None) -> None:
    """Fill `words` from a body.

    Args:
        base: as many words, which the words are relative to; given if and only if the change is
            ZIGZAG.

    Raises:
        DamagedError: the body does not hold this number of words of this size, or the base does not
            fit.
    """
    if not len(words) and not len(body):
        return
    head = parse_head(body, words.itemsize)
    if (head.change is WordTransform.ZIGZAG) != (base is not None):
        raise DamagedError(f"byte planes of change {head.change.name} do not fit the chunk's base")
    size = head.body_size(len(words))
    if size != len(body):
        raise DamagedError(f"{len(body)} bytes of byte planes instead of {size}")
    views = _decode_pieces(memoryview(body)[head.size :], head, len(words))
    _join(WordSeries(words, head.change, base), views)


def _sampled(series: WordSeries) -> list[PlaneSample]:
    """Returns samples of the planes of the transformed words, from windows spread over the
    series."""
    if len(series.words) < FEW:
        return [PlaneSample(bits=8.0, zeros=0.0)] * series.words.itemsize
    part = WordSeries(
        spread(series.words),
        series.change,
        None if series.base is None else spread(series.base),
    )
    return sample_planes(part.forward(slice(None), np.empty_like(part.words)))


def spread(words: Words) -> Words:
    """Returns windows spread over `words`, or all of them if they are few."""
    if len(words) <= _WINDOWS * _WINDOW:
        return words
    stride = len(words) // _WINDOWS
    return words[: _WINDOWS * stride].reshape(_WINDOWS, stride)[:, :_WINDOW].reshape(-1)


def _encode_pieces(
    series: WordSeries, pieces: Sequence[PlanePiece]
) -> tuple[NDArray[np.uint8], list[bytes]]:
    """Returns an array with the pieces that are stored as they are in their places, and the coded
    pieces."""
    count = len(series.words)
    coded = sum(piece.coded for piece in pieces)
    at = head_size(pieces)
    out = np.empty(at + series.words.nbytes, np.uint8)
    planes = iter(thread_buffer("planes", coded * count).reshape(coded, count))
    views: list[_View] = []
    for piece in pieces:
        if piece.coded:
            views.append((piece, next(planes)))
        else:
            end = at + count * piece.width
            views.append((piece, out[at:end].view(f"<u{piece.width}")))
            at = end
    _split(series, views)
    return out, [_code(piece, view.view(np.uint8)) for piece, view in views if piece.coded]


def _code(piece: PlanePiece, plane: NDArray[np.uint8]) -> bytes:
    if piece.form is PieceEncoding.SPARSE:
        return encode_sparse(plane)
    return compress_plane(plane.data)


def _decode_pieces(stored: memoryview, head: PlaneHeader, count: int) -> list[_View]:
    at = 0
    views: list[_View] = []
    for piece in head.pieces:
        if not piece.coded:
            views.append((piece, np.frombuffer(stored, f"<u{piece.width}", count, at)))
            at += count * piece.width
    coded = (piece for piece in head.pieces if piece.coded)
    for piece, length in zip(coded, head.lengths, strict=True):
        views.append((piece, _decode(piece, stored[at : at + length], count)))
        at += length
    return views


def _decode(piece: PlanePiece, data: memoryview, count: int) -> NDArray[np.uint8]:
    if piece.form is PieceEncoding.SPARSE:
        return decode_sparse(data, count)
    return np.frombuffer(decompress(data, count), np.uint8)


def _split(series: WordSeries, views: Sequence[_View]) -> None:
    for part in _parts(series):
        changed = thread_buffer("changed", series.words[part].nbytes).view(series.words.dtype)
        changed = series.forward(part, changed)
        shifted = temporary(changed)
        for piece, view in views:
            if piece.start:
                np.right_shift(changed, 8 * piece.start, out=shifted)
            np.copyto(view[part], shifted if piece.start else changed, casting="unsafe")


def _join(series: WordSeries, views: Sequence[_View]) -> None:
    for part in _parts(series):
        changed = thread_buffer("changed", series.words[part].nbytes).view(series.words.dtype)
        shifted = temporary(changed)
        for number, (piece, view) in enumerate(views):
            target = shifted if number else changed
            np.copyto(target, view[part])
            if piece.start:
                np.left_shift(target, 8 * piece.start, out=target)
            if number:
                np.bitwise_or(changed, shifted, out=changed)
        series.backward(part, changed)


def _parts(series: WordSeries) -> Iterator[slice]:
    count, step = len(series.words), _BLOCK // series.words.itemsize
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
