"""Codec ZSTD, and zstd frames of a known content size.

Blob of codec ZSTD:

    0  one zstd frame with content size; its content is the raw bytes

Empty raw bytes are an empty blob.
"""

from __future__ import annotations

import threading

import zstandard

from checkpointing.errors import DamagedError
from checkpointing.storage.interface import Buffer

FAST = 1  # level

# A byte plane is skewed but hardly ever repeats, so it is the Huffman coder that makes it smaller.
# A hash table this small still finds runs, and keeps the match finder from searching for anything
# else, which takes longer and makes frames larger.
_PLANE = zstandard.ZstdCompressionParameters(
    compression_level=FAST,
    strategy=zstandard.STRATEGY_FAST,
    window_log=17,
    hash_log=6,
    min_match=7,
    write_content_size=1,
)


class _Coders(threading.local):
    def __init__(self) -> None:
        self.plane = zstandard.ZstdCompressor(compression_params=_PLANE)
        self.by_level: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()


_coders = _Coders()


def compress(data: Buffer, level: int) -> bytes:
    """Returns `data` as one frame, with zstd's own strategy at `level`."""
    coder = _coders.by_level.get(level)
    if coder is None:
        coder = _coders.by_level[level] = zstandard.ZstdCompressor(level=level)
    return coder.compress(data)


def compress_plane(data: Buffer, level: int) -> bytes:
    """Returns `data`, bytes of equal significance, as one frame; level 1 uses the strategy that
    suits them best."""
    return _coders.plane.compress(data) if level == FAST else compress(data, level)


def decompress(frame: Buffer, size: int) -> bytes:
    """Returns the content of a frame that must hold `size` bytes, at least one.

    Raises:
        DamagedError: it is not such a frame.
    """
    try:
        stated = zstandard.frame_content_size(frame)
        # checked before decoding, which allocates the size that the frame states
        if stated != size:
            raise DamagedError(f"a zstd frame states {stated} bytes of content instead of {size}")
        data = _coders.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedError(f"not a whole zstd frame ({error})") from error
    if len(data) != size:
        raise DamagedError(f"a zstd frame holds {len(data)} bytes of content instead of {size}")
    return data
