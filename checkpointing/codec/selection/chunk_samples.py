"""Takes a small, representative sample of a chunk."""

from __future__ import annotations

import numpy as np

from checkpointing.codec.word_layout import WordLayout
from checkpointing.storage.interface import Buffer

SIZE = 128 << 10  # bytes
_WINDOW = 8 << 10  # bytes that are taken together, if rows are not longer


def sample(raw: Buffer, layout: WordLayout) -> bytes:
    """Returns about 128 KiB of whole rows in windows spread evenly over `raw`; all of it if it is
    not larger than twice that, or than twice a row. The places are the same for equal lengths and
    layouts."""
    if len(raw) <= 2 * max(SIZE, layout.row) or len(raw) % layout.row:
        return bytes(raw)
    window = max(_WINDOW // layout.row, 1) * layout.row
    windows = max(SIZE // window, 1)
    stride = len(raw) // windows // layout.row * layout.row
    spread = np.frombuffer(raw, np.uint8, windows * stride).reshape(windows, stride)
    return spread[:, :window].tobytes()
