"""Codec CONSTANT: stores a chunk whose words are all the same, bit by bit.

Blob:

    0  the word, as it is in the chunk: 1, 2, 4 or 8 bytes

No words at all are an empty blob.
"""

from __future__ import annotations

import numpy as np

from checkpointing.codec.algorithms.word_transforms import as_words
from checkpointing.errors import DamagedError
from checkpointing.storage.interface import Buffer

_FIRST = 64  # words: a chunk that is not constant rarely begins with so many equal ones


def is_constant(raw: Buffer, word: int) -> bool:
    """Whether all words have the same bits, also if there are none. Fast if they do not."""
    words = as_words(raw, word)
    return bool((words[:_FIRST] == words[:1]).all() and (words == words[:1]).all())


def encode_constant(raw: Buffer, word: int) -> bytes:
    """Returns the blob described above.

    Raises:
        ValueError: the words differ.
    """
    if not is_constant(raw, word):
        raise ValueError(
            "codec CONSTANT is for equal words, but these differ: call is_constant first"
        )
    return bytes(raw[:word])


def decode_constant(stored: Buffer, out: memoryview, word: int) -> None:
    """Fill `out` from a blob.

    Raises:
        DamagedError: the blob is not a word.
    """
    if len(stored) != (word if len(out) else 0):
        raise DamagedError(f"{len(stored)} bytes stored for a constant of {word} bytes")
    np.copyto(as_words(out, word), as_words(stored, word))
