"""Codec GROUPS: stores the difference to a base chunk, in groups of words by the magnitude of the
base's.

A training step changes large and small weights by about the same amount. So the difference of two
floats, in units of the last place, is larger for smaller floats, and words whose bases have a
similar magnitude compress better separately. With `g` groups of words of `w` bytes, numbers
little-endian:

    0    u8   g, 2 to 8
    1    3    zeros
    4    ...  g - 1 limits of w bytes each, rising. A word is in the group whose number, from 0, is
              how many of them are not above the base's word with its highest bit cleared
    ...  u32  x g: bytes of each group's body
    ...  ...  g bodies as described in byte_planes.py, change 0 or 1, of the group's words in the
              order they have in the chunk, each as ZIGZAG in word_transforms.py makes it

No words at all are an empty blob.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from checkpointing.codec.algorithms.byte_planes import decode_body, encode_body, spread
from checkpointing.codec.algorithms.word_transforms import (
    Words,
    WordSeries,
    WordTransform,
    as_words,
)
from checkpointing.errors import DamagedError
from checkpointing.storage.interface import Buffer

_SHARES = (0.25, 0.6)  # of words below each limit; differences vary more among smaller words
_MOST = 8  # largest number of groups
_FIXED, _LENGTH = 4, 4  # bytes


def encode_groups(words: Words, base: Words) -> bytes:
    """Returns the blob described above, larger than the words by at most 1 KiB plus a
    ten-thousandth.

    Args:
        base: as many words as `words`.
    """
    if not len(words):
        return b""
    magnitudes = _magnitudes(base)
    limits = _limits(magnitudes)
    changed = WordSeries(words, WordTransform.ZIGZAG, base).forward(
        slice(None), np.empty_like(words)
    )
    bodies = [
        encode_body(WordSeries(changed.take(places), WordTransform.PLAIN))
        for places in _groups(magnitudes, limits)
    ]
    lengths = struct.pack(f"<{len(bodies)}I", *map(len, bodies))
    return b"".join([bytes([len(bodies), 0, 0, 0]), limits.tobytes(), lengths, *bodies])


def decode_groups(stored: Buffer, words: Words, base: Words) -> None:
    """Fill `words` from a blob.

    Raises:
        DamagedError: the blob does not hold this number of words of this size.
    """
    if not len(words) and not len(stored):
        return
    limits, lengths = _parse_head(stored, words)
    at = len(stored) - sum(lengths)
    changed = np.empty_like(words)
    for places, length in zip(_groups(_magnitudes(base), limits), lengths, strict=True):
        part = np.empty(len(places), words.dtype)
        decode_body(memoryview(stored)[at : at + length], part)
        changed[places] = part
        at += length
    WordSeries(words, WordTransform.ZIGZAG, base).backward(slice(None), changed)


def _magnitudes(base: Words) -> Words:
    highest = 1 << (8 * base.itemsize - 1)
    return np.bitwise_and(base, highest - 1)


def _limits(magnitudes: Words) -> Words:
    found = np.sort(spread(magnitudes))
    return np.unique(found[[int(share * len(found)) for share in _SHARES]])


def _groups(magnitudes: Words, limits: Words) -> Iterator[NDArray[np.intp]]:
    """Yields the indexes of the words of each group."""
    before = np.zeros(len(magnitudes), np.bool_)
    for limit in limits:
        below = magnitudes < limit
        yield np.flatnonzero(below > before)
        before = below
    yield np.flatnonzero(~before)


def _parse_head(stored: Buffer, words: Words) -> tuple[Words, tuple[int, ...]]:
    """Returns the limits, and the bytes of each body."""
    head = bytes(stored[:_FIXED])
    if len(head) < _FIXED or not 2 <= head[0] <= _MOST or any(head[1:]):
        raise DamagedError(f"{head.hex()} is not a head of groups of words")
    end = _FIXED + (head[0] - 1) * words.itemsize
    start = end + head[0] * _LENGTH
    if len(stored) < start:
        raise DamagedError(f"{len(stored)} bytes are too few for {head[0]} groups of words")
    limits = as_words(bytes(stored[_FIXED:end]), words.itemsize)
    if not (limits[1:] > limits[:-1]).all():
        raise DamagedError(f"the limits of groups of words do not increase: {limits.tolist()}")
    lengths = struct.unpack_from(f"<{head[0]}I", stored, end)
    if start + sum(lengths) != len(stored):
        raise DamagedError(f"{len(stored)} bytes of groups instead of {start + sum(lengths)}")
    return limits, lengths
