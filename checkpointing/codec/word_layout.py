"""The layout of a chunk that codecs need: the scalar words that its bytes are made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

WORDS = (1, 2, 4, 8)  # bytes


class Codec(IntEnum):
    """How a chunk is encoded; one byte in the format."""

    RAW = 0  # the bytes themselves
    ZSTD = 1  # one zstd frame
    PLANES = 2  # bytes of equal significance together, entropy-coded where that saves space
    DELTA = 3  # the difference to a base chunk, as planes
    CONSTANT = 4  # one word, repeated
    ROWS = 5  # only the rows that differ from those of a base chunk, or from zeros
    GROUPS = 6  # as DELTA, with the words in groups by the magnitude of the base's words


@dataclass(frozen=True)
class WordLayout:
    """The words and rows of a chunk."""

    word: int  # bytes per scalar: 1, 2, 4 or 8; 4 for complex64
    is_float: bool  # words are sign, exponent and mantissa, in this order
    row: int  # bytes per row: the extent of the innermost dimension, a multiple of `word`

    def __post_init__(self) -> None:
        if self.word not in WORDS:
            raise ValueError(f"Layout(word=) must be 1, 2, 4 or 8 bytes, got {self.word!r}")
        if self.row < 1 or self.row % self.word:
            raise ValueError(
                f"Layout(row=) must be a positive multiple of the word's {self.word} bytes, "
                f"got {self.row!r}"
            )
