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

_LEVEL = 1  # the fastest one above zero

# A byte plane is skewed but hardly ever repeats, so it is the Huffman coder that makes it smaller.
# A hash table this small still finds runs, and keeps the match finder from searching for anything
# else, which takes longer and makes frames larger.
_PLANE = zstandard.ZstdCompressionParameters(
    compression_level=_LEVEL,
    strategy=zstandard.STRATEGY_FAST,
    window_log=17,
    hash_log=6,
    min_match=7,
    write_content_size=1,
)


class _Coders(threading.local):
    def __init__(self) -> None:
        self.plane = zstandard.ZstdCompressor(compression_params=_PLANE)
        self.bytes = zstandard.ZstdCompressor(level=_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_coders = _Coders()


def compress(data: Buffer) -> bytes:
    """Returns `data` as one frame, with zstd's own strategy."""
    return _coders.bytes.compress(data)


def compress_plane(data: Buffer) -> bytes:
    """Returns `data`, bytes of equal significance, as one frame, with the strategy that suits them
    best."""
    return _coders.plane.compress(data)


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
