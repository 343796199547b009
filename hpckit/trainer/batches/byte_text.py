"""The conversion of text to bytes: a sample of any length becomes a token window of fixed
length."""

from __future__ import annotations

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
    """A transform for `data.Loader` that takes `length` consecutive tokens of the only member of a
    sample.

    The place of the window in a longer document depends only on the seed and the position; a
    shorter document is padded with `PADDING`.
    """

    length: int

    def __call__(self, sample: Sample, context: SampleContext) -> Tokens:
        """Return the window, (length,) tokens.

        Raises:
            DataError: the sample does not have exactly one member.
        """
        document = _only_member(sample)
        first = max(0, len(document) + 1 - self.length)
        start = int(context.rng.integers(first + 1)) if first else 0
        window = np.full(self.length, PADDING, dtype=np.int64)
        text = np.frombuffer(document, dtype=np.uint8)[start : start + self.length]
        window[: len(text)] = text
        if len(text) < self.length:
            window[len(text)] = END
        return window


def _only_member(sample: Sample) -> bytes:
    members = [name for name in sample if not name.startswith("__")]
    if len(members) != 1:
        raise DataError(
            f"{sample['__url__']}: sample {sample['__key__']!r} has members {members}; "
            "training on text takes samples with one"
        )
    content = sample[members[0]]
    assert isinstance(content, bytes)
    return content
