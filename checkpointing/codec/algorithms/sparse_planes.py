"""Encodes a byte plane that is mostly zeros: a bitmap of the other bytes, and those bytes.

For `n` bytes of which `k` are not zero, numbers little-endian:

    0      u32  bytes of the first frame
    4      ...  zstd frame with content size, of ceil(n / 8) bytes of bits: byte i is bit i % 8,
                from the lowest, of byte i // 8; set if it is not zero. Bits past the last byte
                are 0
    ...    ...  zstd frame with content size, of the k bytes; nothing if k is 0
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from checkpointing.codec.algorithms.zstd_frames import compress_plane, decompress
from checkpointing.errors import DamagedError

_LENGTH = struct.Struct("<I")


def encode_sparse(plane: NDArray[np.uint8]) -> bytes:
    """Returns the form described above."""
    there = plane != 0
    bits = compress_plane(np.packbits(there, bitorder="little").data)
    values = plane.take(np.flatnonzero(there))  # several times faster than plane[there]
    frame = compress_plane(values.data) if len(values) else b""
    return b"".join([_LENGTH.pack(len(bits)), bits, frame])


def decode_sparse(stored: memoryview, count: int) -> NDArray[np.uint8]:
    """Returns the plane of `count` bytes, at least one.

    Raises:
        DamagedError: `stored` is not the form of that many bytes.
    """
    if len(stored) < _LENGTH.size:
        raise DamagedError(f"{len(stored)} bytes are too few for a sparse byte plane")
    end = _LENGTH.size + _LENGTH.unpack_from(stored)[0]
    bits = np.frombuffer(decompress(stored[_LENGTH.size : end], -(-count // 8)), np.uint8)
    there = np.unpackbits(bits, bitorder="little").view(np.bool_)
    if there[count:].any():
        raise DamagedError(f"a sparse byte plane has more than its {count} bytes")
    places = np.flatnonzero(there)
    plane = np.zeros(count, np.uint8)
    if len(places):
        plane[places] = np.frombuffer(decompress(stored[end:], len(places)), np.uint8)
    elif len(stored) > end:
        raise DamagedError(f"{len(stored) - end} bytes stored for no values of a sparse byte plane")
    return plane
