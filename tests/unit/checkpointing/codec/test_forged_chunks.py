"""Blobs that are consistent but for one thing: each is refused."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard

from checkpointing.codec import Codec, WordLayout, decode
from checkpointing.errors import DamagedError

LAYOUT = WordLayout(2, False, 2)
COUNT = 12  # words
NOISE = np.random.default_rng(0).bytes(2 * COUNT)


def u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def frame(data: bytes) -> bytes:
    return zstandard.compress(data)


def sparse(bits: bytes, values: bytes) -> bytes:
    return u32(len(frame(bits))) + frame(bits) + (frame(values) if values else b"")


def planes(head: bytes, *coded: bytes, stored: bytes = b"") -> bytes:
    return head + b"".join(u32(len(data)) for data in coded) + stored + b"".join(coded)


def rows(*, relative: int = 0, zero: int = 0, row: int = 2, kept: int, rest: bytes) -> bytes:
    return bytes([relative, zero, 0, 0]) + u32(row) + u32(kept) + rest


def groups(limits: bytes, *bodies: bytes, head: bytes = b"") -> bytes:
    head = head or bytes([len(bodies), 0, 0, 0])
    return head + limits + b"".join(u32(len(body)) for body in bodies) + b"".join(bodies)


BASE = (np.arange(COUNT, dtype="<u2") * 9999).tobytes()  # of GROUPS: 6 words below 0x3000
SIX = planes(b"\x01\0\0\0", stored=NOISE[:COUNT])
LIMIT = b"\0\x30"
HALF = NOISE[:COUNT]
TWO = NOISE[:4]  # two words, as the body of two rows
WHOLE = {
    "one piece": (Codec.PLANES, planes(b"\x01\0\0\0", stored=NOISE)),
    "two pieces": (Codec.PLANES, planes(b"\x03\0\0\0", stored=NOISE)),
    "one coded": (Codec.PLANES, planes(b"\x03\x02\0\0", frame(HALF), stored=HALF)),
    "one sparse": (
        Codec.PLANES,
        planes(b"\x03\x02\x02\0", sparse(b"\x01\x08", b"ab"), stored=HALF),
    ),
    "no values": (Codec.PLANES, planes(b"\x03\x02\x02\0", sparse(bytes(2), b""), stored=HALF)),
    "rotated": (Codec.PLANES, planes(b"\x01\0\0\x01", stored=NOISE)),
    "rows": (Codec.ROWS, rows(kept=2, rest=b"\x01\x08" + planes(b"\x01\0\0\0", stored=TWO))),
    "all rows": (Codec.ROWS, rows(kept=COUNT, rest=planes(b"\x01\0\0\0", stored=NOISE))),
    "no rows": (Codec.ROWS, rows(kept=0, rest=b"")),
    "two groups": (Codec.GROUPS, groups(LIMIT, SIX, SIX)),
    "an empty group": (Codec.GROUPS, groups(b"\0\0" + LIMIT, b"", SIX, SIX)),
}
FORGED = {
    "a cut past the word": (Codec.PLANES, planes(b"\x05\0\0\0", stored=NOISE)),
    "no cut at byte 0": (Codec.PLANES, planes(b"\x02\0\0\0", stored=HALF)),
    "no cut": (Codec.PLANES, planes(bytes(4))),
    "coded where nothing begins": (
        Codec.PLANES,
        planes(b"\x01\x02\0\0", stored=bytes(4) + NOISE[4:]),  # as if a length of 0
    ),
    "a coded piece of two bytes": (Codec.PLANES, planes(b"\x01\x01\0\0", frame(NOISE))),
    "sparse but not coded": (Codec.PLANES, planes(b"\x03\0\x02\0", stored=NOISE[:16])),
    "an unknown change": (Codec.PLANES, planes(b"\x01\0\0\x03", stored=NOISE)),
    "a change that needs a base": (Codec.PLANES, planes(b"\x01\0\0\x02", stored=NOISE)),
    "a frame too short": (Codec.PLANES, planes(b"\x03\x02\0\0", frame(HALF[1:]), stored=HALF)),
    "bits past the last byte": (
        Codec.PLANES,
        planes(b"\x03\x02\x02\0", sparse(b"\x01\x18", b"abc"), stored=HALF),
    ),
    "too few values": (
        Codec.PLANES,
        planes(b"\x03\x02\x02\0", sparse(b"\x01\x08", b"a"), stored=HALF),
    ),
    "values for nothing": (
        Codec.PLANES,
        planes(b"\x03\x02\x02\0", sparse(bytes(2), b"a"), stored=HALF),
    ),
    "rows past the last": (
        Codec.ROWS,
        rows(kept=2, rest=b"\x01\x10" + planes(b"\x01\0\0\0", stored=TWO)),
    ),
    "more rows marked": (
        Codec.ROWS,
        rows(kept=2, rest=b"\x03\x08" + planes(b"\x01\0\0\0", stored=TWO)),
    ),
    "more rows than there are": (Codec.ROWS, rows(kept=COUNT + 1, rest=b"")),
    "rows that do not fill the chunk": (Codec.ROWS, rows(row=10, kept=0, rest=b"")),
    "rows of half words": (Codec.ROWS, rows(row=3, kept=0, rest=b"")),
    "rows of nothing": (Codec.ROWS, rows(row=0, kept=0, rest=b"")),
    "rows with reserved bytes": (Codec.ROWS, rows(zero=1, kept=0, rest=b"")),
    "rows on a base": (Codec.ROWS, rows(relative=1, kept=0, rest=b"")),
    "rows on what": (Codec.ROWS, rows(relative=2, kept=0, rest=b"")),
    "no rows, and more": (Codec.ROWS, rows(kept=0, rest=b"\0")),
    "one group": (Codec.GROUPS, groups(b"", planes(b"\x01\0\0\0", stored=NOISE))),
    "no group": (Codec.GROUPS, groups(b"", head=bytes(4))),
    "nine groups": (Codec.GROUPS, groups(b"".join(bytes([i, i]) for i in range(8)), *[SIX] * 9)),
    "groups with reserved bytes": (Codec.GROUPS, groups(LIMIT, SIX, SIX, head=b"\x02\0\x01\0")),
    "limits that do not rise": (Codec.GROUPS, groups(LIMIT + LIMIT, SIX, b"", SIX)),
    "no lengths of groups": (Codec.GROUPS, b"\x02\0\0\0" + LIMIT + u32(0)),
    "groups, and more": (Codec.GROUPS, groups(LIMIT, SIX, SIX) + b"\0"),
    "groups of other words": (Codec.GROUPS, groups(b"\0\x40", SIX, SIX)),
    "a group that needs a base": (
        Codec.GROUPS,
        groups(LIMIT, SIX, planes(b"\x01\0\0\x02", stored=HALF)),
    ),
    "a long constant": (Codec.CONSTANT, b"\0\0\0"),
    "two frames": (Codec.ZSTD, frame(NOISE) + frame(b"")),
    "a short raw": (Codec.RAW, NOISE[1:]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_forger_knows_the_format(name: str) -> None:
    codec, stored = WHOLE[name]
    base = BASE if codec is Codec.GROUPS else None
    decode(codec, stored, memoryview(bytearray(2 * COUNT)), LAYOUT, base)


@pytest.mark.parametrize("name", FORGED)
def test_refused(name: str) -> None:
    codec, stored = FORGED[name]
    base = BASE if codec is Codec.GROUPS else None
    with pytest.raises(DamagedError):
        decode(codec, stored, memoryview(bytearray(2 * COUNT)), LAYOUT, base)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_chunk_of_half_words(codec: Codec) -> None:
    with pytest.raises(DamagedError):
        decode(codec, bytes(3), memoryview(bytearray(3)), LAYOUT, bytes(3))


def test_a_base_of_another_length() -> None:
    delta = planes(b"\x01\0\0\x02", stored=NOISE)
    out = memoryview(bytearray(2 * COUNT))
    decode(Codec.DELTA, delta, out, LAYOUT, bytes(2 * COUNT))
    for size in (2 * COUNT - 2, 2 * COUNT + 2, 2):
        with pytest.raises(DamagedError):
            decode(Codec.DELTA, delta, out, LAYOUT, bytes(size))


def test_the_layout_of_the_blobs() -> None:
    """Byte by byte as described: what was written once has to stay readable."""
    out = bytearray(2 * COUNT)
    decode(Codec.PLANES, WHOLE["one sparse"][1], memoryview(out), LAYOUT)
    high = np.zeros(COUNT, np.uint8)
    high[[0, 11]] = ord("a"), ord("b")
    expected = np.frombuffer(HALF, np.uint8) | high.astype("<u2") << 8
    assert out == expected.tobytes()

    decode(Codec.ROWS, WHOLE["rows"][1], memoryview(out), LAYOUT)
    words = np.zeros(COUNT, "<u2")
    words[[0, 11]] = np.frombuffer(TWO, "<u2")
    assert out == words.tobytes()

    decode(Codec.PLANES, WHOLE["rotated"][1], memoryview(out), LAYOUT)
    rotated = np.frombuffer(NOISE, "<u2")
    assert out == (rotated >> 1 | rotated << 15).astype("<u2").tobytes()

    base = np.arange(COUNT, dtype="<u2") * 9999
    decode(
        Codec.DELTA, planes(b"\x01\0\0\x02", stored=NOISE), memoryview(out), LAYOUT, base.tobytes()
    )
    zigzag = rotated.astype(np.int64)
    difference = np.where(zigzag % 2, -(zigzag + 1) // 2, zigzag // 2)
    assert out == ((base + difference) % 65536).astype("<u2").tobytes()

    below = np.frombuffer(base.tobytes(), "<u2") & 0x7FFF < 0x3000
    numbers = np.empty(COUNT, np.int64)
    numbers[below] = numbers[~below] = zigzag[:6]
    difference = np.where(numbers % 2, -(numbers + 1) // 2, numbers // 2)
    decode(Codec.GROUPS, WHOLE["two groups"][1], memoryview(out), LAYOUT, BASE)
    assert out == ((base + difference) % 65536).astype("<u2").tobytes()
