"""zstd frames of a known content size, and codec ZSTD.

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

# A byte plane is skewed but hardly ever repeats: what shrinks it is the Huffman coder. A hash table
# this small still finds runs and keeps the match finder from looking for anything else, which
# takes longer and makes frames larger.
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
    """`data` as one frame, in zstd's own way at `level`."""
    coder = _coders.by_level.get(level)
    if coder is None:
        coder = _coders.by_level[level] = zstandard.ZstdCompressor(level=level)
    return coder.compress(data)


def compress_plane(data: Buffer, level: int) -> bytes:
    """`data`, bytes of equal weight, as one frame; at level 1 in the way that suits them best."""
    return _coders.plane.compress(data) if level == FAST else compress(data, level)


def decompress(frame: Buffer, size: int) -> bytes:
    """The content of a frame that must hold `size` bytes, at least one.

    Raises:
        DamagedError: it is no such frame.
    """
    try:
        stated = zstandard.frame_content_size(frame)
        # before it is decoded: memory is taken for what the frame states
        if stated != size:
            raise DamagedError(f"a zstd frame states {stated} bytes of content instead of {size}")
        data = _coders.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedError(f"not a whole zstd frame ({error})") from error
    if len(data) != size:
        raise DamagedError(f"a zstd frame holds {len(data)} bytes of content instead of {size}")
    return data
