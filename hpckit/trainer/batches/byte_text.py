"""The conversion of text to bytes: a sample of any length becomes a token window of fixed
length."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data import DataError, Sample, SampleContext
from hpckit.config.entry_points import BYTES_AND_END

END = 256
"""The token after the last byte of a document."""
VOCAB = BYTES_AND_END
PADDING = -1
"""The token of padding, at which nothing is predicted."""

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ByteWindow:
    """A transform for `data.Loader` that takes `length` consecutive tokens of the text of a sample:
    of its only member, or of the one that is in `columns`.

    The place of the window in a longer document depends only on the seed and the position; a
    shorter document is padded with `PADDING`.
    """

    length: int
    columns: tuple[str, ...] = ()

    def __call__(self, sample: Sample, context: SampleContext) -> Tokens:
        """Return the window, (length,) tokens.

        Raises:
            DataError: the sample does not have exactly one such member, or it is no text.
        """
        document = text_of(sample, self.columns)
        first = max(0, len(document) + 1 - self.length)
        start = int(context.rng.integers(first + 1)) if first else 0
        window = np.full(self.length, PADDING, dtype=np.int64)
        text = np.frombuffer(document, dtype=np.uint8)[start : start + self.length]
        window[: len(text)] = text
        if len(text) < self.length:
            window[len(text)] = END
        return window


def text_of(sample: Sample, columns: Collection[str] = ()) -> bytes:
    """Return the bytes of the text of a sample, in UTF-8: the member that is in `columns`, or its
    only one. Raises DataError."""
    names = [name for name in sample if not name.startswith("__")]
    found = [name for name in names if name in columns] or names
    if len(found) != 1:
        problem = "training on text takes samples with one, or the one that data.column names"
        if columns:
            problem += f", which is one of {', '.join(columns)}"
        raise DataError(
            f"{sample['__url__']}: sample {sample['__key__']!r} has members {names}; {problem}"
        )
    content = sample[found[0]]
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if not isinstance(content, bytes):
        raise DataError(
            f"{sample['__url__']}: sample {sample['__key__']!r} has in {found[0]!r} no text, but a "
            f"value of type {type(content).__name__}; name another by data.column"
        )
    return content
