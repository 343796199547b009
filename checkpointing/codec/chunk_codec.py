"""Encodes and decodes a chunk with any codec."""

from __future__ import annotations

from collections.abc import Callable

from checkpointing.codec.algorithms.byte_planes import decode_body, encode_body
from checkpointing.codec.algorithms.changed_rows import decode_rows, encode_rows
from checkpointing.codec.algorithms.constant_words import decode_constant, encode_constant
from checkpointing.codec.algorithms.magnitude_groups import decode_groups, encode_groups
from checkpointing.codec.algorithms.word_transforms import WordSeries, WordTransform, as_words
from checkpointing.codec.algorithms.zstd_frames import compress, decompress
from checkpointing.codec.word_layout import Codec, WordLayout
from checkpointing.errors import DamagedError, FormatError
from checkpointing.storage.interface import Buffer

MAX_RAW = 1 << 31  # bytes of a chunk: lengths in blobs are u32


def encode(codec: Codec, raw: Buffer, layout: WordLayout, base: Buffer | None = None) -> Buffer:
    """Returns `raw` encoded by `codec`. The result is larger than `raw` by at most 256 bytes (1 KiB
    for GROUPS) plus a ten-thousandth.

    Thread-safe; releases the GIL while it works.

    Args:
        raw: contiguous bytes, a whole number of words, or of rows for ROWS. RAW returns `raw`
            itself.
        base: as many bytes of the same layout. DELTA and GROUPS need it; with ROWS, unchanged rows
            equal those of the base instead of zeros. Other codecs ignore it.

    Raises:
        ValueError: `raw` has more than 2 GiB; lengths do not fit each other or the layout; CONSTANT
            is used for words that differ; DELTA or GROUPS has no base; a buffer is not contiguous
            bytes.
    """
    _need_bytes("raw", raw)
    _need_bytes("base", base)
    if len(raw) > MAX_RAW:
        raise ValueError(f"{len(raw)} bytes are too many for a chunk: divide them into several")
    if len(raw) % layout.word:
        raise ValueError(f"{len(raw)} bytes are not a whole number of {layout.word}-byte words")
    if base is not None and len(base) != len(raw):
        raise ValueError(f"a base of {len(base)} bytes does not fit {len(raw)} bytes")
    return _ENCODERS[codec](raw, layout, base)


def decode(
    codec: int, stored: Buffer, out: memoryview, layout: WordLayout, base: Buffer | None = None
) -> None:
    """Fill `out` with the raw bytes from which `encode` made `stored`.

    Takes memory for at most sixteen times `out`, whatever `stored` holds. If it raises, the content
    of `out` is undefined. The caller must check the bytes by their hash.

    Args:
        out: contiguous and writable, as long as the raw bytes.
        base: raw bytes of the base, if the chunk has one.

    Raises:
        DamagedError: `stored`, `layout`, the length of `out` and `base` do not fit each other.
        FormatError: `codec` is unknown to this version.
        ValueError: `out` is read-only, or a buffer is not contiguous bytes.
    """
    _need_bytes("stored", stored)
    _need_bytes("out", out)
    _need_bytes("base", base)
    if out.readonly:
        raise ValueError("out is read-only: give a memoryview of a bytearray or a writable array")
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise FormatError(
            f"codec {codec} is unknown to this version; update hpckit to read the chunk"
        )
    if len(out) % layout.word:
        raise DamagedError(f"a chunk of {len(out)} bytes cannot have the layout {layout}")
    if base is not None and len(base) != len(out):
        raise DamagedError(f"a base of {len(base)} bytes does not fit a chunk of {len(out)} bytes")
    decoder(stored, out, layout, base)


def _need_bytes(name: str, data: Buffer | None) -> None:
    if isinstance(data, memoryview) and not (data.c_contiguous and data.nbytes == len(data)):
        raise ValueError(
            f"{name} is not a view of contiguous bytes: give .cast('B') of a contiguous one"
        )


def _encode_raw(raw: Buffer, layout: WordLayout, base: Buffer | None) -> Buffer:
    return raw


def _encode_zstd(raw: Buffer, layout: WordLayout, base: Buffer | None) -> Buffer:
    return compress(raw) if len(raw) else b""


def _encode_planes(raw: Buffer, layout: WordLayout, base: Buffer | None) -> Buffer:
    change = WordTransform.ROTATED if layout.is_float else WordTransform.PLAIN
    return encode_body(WordSeries(as_words(raw, layout.word), change))


def _encode_delta(raw: Buffer, layout: WordLayout, base: Buffer | None) -> Buffer:
    if base is None:
        raise ValueError("codec DELTA needs a base chunk")
    words, before = as_words(raw, layout.word), as_words(base, layout.word)
    return encode_body(WordSeries(words, WordTransform.ZIGZAG, before))


def _encode_groups(raw: Buffer, layout: WordLayout, base: Buffer | None) -> Buffer:
    if base is None:
        raise ValueError("codec GROUPS needs a base chunk")
    return encode_groups(as_words(raw, layout.word), as_words(base, layout.word))


def _encode_constant(raw: Buffer, layout: WordLayout, base: Buffer | None) -> Buffer:
    return encode_constant(raw, layout.word)


def _decode_raw(stored: Buffer, out: memoryview, layout: WordLayout, base: Buffer | None) -> None:
    if len(stored) != len(out):
        raise DamagedError(f"{len(stored)} bytes are stored for a chunk of {len(out)} raw bytes")
    out[:] = stored


def _decode_zstd(stored: Buffer, out: memoryview, layout: WordLayout, base: Buffer | None) -> None:
    if len(out) or len(stored):
        out[:] = decompress(stored, len(out))


def _decode_planes(
    stored: Buffer, out: memoryview, layout: WordLayout, base: Buffer | None
) -> None:
    decode_body(stored, as_words(out, layout.word))


def _decode_delta(stored: Buffer, out: memoryview, layout: WordLayout, base: Buffer | None) -> None:
    if base is None:
        raise DamagedError("a chunk of codec DELTA has no base chunk")
    decode_body(stored, as_words(out, layout.word), as_words(base, layout.word))


def _decode_groups(
    stored: Buffer, out: memoryview, layout: WordLayout, base: Buffer | None
) -> None:
    if base is None:
        raise DamagedError("a chunk of codec GROUPS has no base chunk")
    decode_groups(stored, as_words(out, layout.word), as_words(base, layout.word))


def _decode_constant(
    stored: Buffer, out: memoryview, layout: WordLayout, base: Buffer | None
) -> None:
    decode_constant(stored, out, layout.word)


_ENCODERS: dict[Codec, Callable[[Buffer, WordLayout, Buffer | None], Buffer]] = {
    Codec.RAW: _encode_raw,
    Codec.ZSTD: _encode_zstd,
    Codec.PLANES: _encode_planes,
    Codec.DELTA: _encode_delta,
    Codec.CONSTANT: _encode_constant,
    Codec.ROWS: encode_rows,
    Codec.GROUPS: _encode_groups,
}
_DECODERS: dict[int, Callable[[Buffer, memoryview, WordLayout, Buffer | None], None]] = {
    Codec.RAW: _decode_raw,
    Codec.ZSTD: _decode_zstd,
    Codec.PLANES: _decode_planes,
    Codec.DELTA: _decode_delta,
    Codec.CONSTANT: _decode_constant,
    Codec.ROWS: decode_rows,
    Codec.GROUPS: _decode_groups,
}
