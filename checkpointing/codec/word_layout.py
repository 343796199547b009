"""What a codec has to know of a chunk: the scalar words that its bytes are made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

WORDS = (1, 2, 4, 8)  # bytes


class Codec(IntEnum):
    """How a chunk is stored: one byte in the format."""

    RAW = 0  # the bytes themselves
    ZSTD = 1  # one zstd frame
    PLANES = 2  # bytes of equal weight together, those that pay entropy-coded
    DELTA = 3  # the difference to a base chunk, as planes
    CONSTANT = 4  # one word, repeated
    ROWS = 5  # only the rows that are not those of a base chunk, or not zero
    GROUPS = 6  # as DELTA, the words in groups by the magnitude of the base's


@dataclass(frozen=True)
class WordLayout:
    """The words and rows of a chunk."""

    word: int  # bytes per scalar: 1, 2, 4 or 8; of complex64 4
    is_float: bool  # words are sign, exponent and mantissa, in this order
    row: int  # bytes per row: the extent of the innermost dimension, a multiple of `word`

    def __post_init__(self) -> None:
        if self.word not in WORDS:
            raise ValueError(f"Layout(word=) is 1, 2, 4 or 8 bytes, got {self.word!r}")
        if self.row < 1 or self.row % self.word:
            raise ValueError(
                f"Layout(row=) is a positive multiple of the word's {self.word} bytes, "
                f"got {self.row!r}"
            )
