"""Reversible transforms of words, block by block, after which their bytes compress better.

PLAIN    the word as it is
ROTATED  rotated left by one bit: a float's sign becomes its lowest bit, so that its exponent
         begins with the highest
ZIGZAG   the difference d to the same word of the base, modulo 2**bits, as a signed number in
         two's complement mapped to 2d (d >= 0) or -2d - 1 (d < 0): small ones of either sign
         have zeros at the top
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from checkpointing.codec.thread_buffers import thread_buffer
from checkpointing.storage.interface import Buffer

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]


class WordTransform(IntEnum):
    """The transform of words; one byte in the format."""

    PLAIN = 0
    ROTATED = 1
    ZIGZAG = 2


def as_words(data: Buffer, word: int) -> Words:
    """Returns `data` as little-endian unsigned numbers of `word` bytes; a view, writable if `data`
    is."""
    words: Words = np.frombuffer(data, f"<u{word}")
    return words


@dataclass(frozen=True)
class WordSeries:
    """Words to transform, or to restore in place."""

    words: Words
    change: WordTransform
    base: Words | None = None  # for ZIGZAG: as long as `words`

    def forward(self, part: slice, out: Words) -> Words:
        """Returns the transformed words of `part`: in `out`, or in place if nothing changes."""
        words = self.words[part]
        if self.change is WordTransform.ROTATED:
            return _rotate_left(words, out)
        if self.base is not None:
            return _zigzag(words, self.base[part], out)
        return words

    def backward(self, part: slice, changed: Words) -> None:
        """Restore the words of `part`. `changed` is overwritten."""
        words = self.words[part]
        if self.change is WordTransform.ROTATED:
            _rotate_right(changed, words)
        elif self.base is not None:
            _unzigzag(changed, self.base[part], words)
        else:
            np.copyto(words, changed)


def temporary(like: Words) -> Words:
    """Returns memory for as many words as `like` has, for the steps within one function."""
    return thread_buffer("words", like.nbytes).view(like.dtype)


def _bits(words: Words) -> int:
    return 8 * words.itemsize


def _signed(words: Words) -> NDArray[np.signedinteger[Any]]:
    return words.view(f"<i{words.itemsize}")


def _rotate_left(words: Words, out: Words) -> Words:
    low = np.right_shift(words, _bits(words) - 1, out=temporary(words))
    np.left_shift(words, 1, out=out)
    return np.bitwise_or(out, low, out=out)


def _rotate_right(changed: Words, out: Words) -> None:
    high = np.left_shift(changed, _bits(changed) - 1, out=temporary(changed))
    np.right_shift(changed, 1, out=changed)
    np.bitwise_or(changed, high, out=out)


def _zigzag(words: Words, base: Words, out: Words) -> Words:
    signs = temporary(words)
    np.subtract(words, base, out=out)
    np.right_shift(_signed(out), _bits(words) - 1, out=_signed(signs))  # all zeros or all ones
    np.left_shift(out, 1, out=out)
    return np.bitwise_xor(out, signs, out=out)


def _unzigzag(changed: Words, base: Words, out: Words) -> None:
    signs = np.bitwise_and(changed, 1, out=temporary(changed))
    np.negative(signs, out=signs)
    np.right_shift(changed, 1, out=changed)
    np.bitwise_xor(changed, signs, out=changed)
    np.add(changed, base, out=out)
