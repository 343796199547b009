from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from checkpointing.codec import Codec, WordLayout, decode, encode
from checkpointing.codec.algorithms.zstd_frames import compress_plane
from checkpointing.errors import DamagedError, FormatError
from tests.effort import times
from tests.unit.checkpointing.codec.sample_chunks import contents, fill, layouts, near

WORDS = (1, 2, 4, 8)
ON_BASE = (Codec.DELTA, Codec.GROUPS)
KINDS = ("noise", "run", "special", "weights", "sparse", "constant")
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def decoded(
    codec: int,
    stored: bytes | bytearray | memoryview,
    size: int,
    layout: WordLayout,
    base: bytes | None,
) -> bytes:
    out = bytearray(b"\xa5" * size)
    decode(codec, stored, memoryview(out), layout, base)
    return bytes(out)


def ways(raw: bytes, base: bytes, layout: WordLayout) -> Iterator[tuple[Codec, bytes | None]]:
    """All codecs that can take `raw`."""
    yield from ((codec, None) for codec in (Codec.RAW, Codec.ZSTD, Codec.PLANES, Codec.ROWS))
    yield from ((Codec.DELTA, base), (Codec.GROUPS, base), (Codec.ROWS, base))
    if raw == raw[: layout.word] * (len(raw) // layout.word):
        yield Codec.CONSTANT, None


def room(codec: Codec) -> int:
    """Bytes that a stored form may have beyond the raw ones."""
    return 1024 if codec is Codec.GROUPS else 256


@given(st.data())
@settings(max_examples=times(75), deadline=None, suppress_health_check=SLOW)
def test_comes_back_bit_by_bit_and_hardly_larger(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    raw = data.draw(contents(layout))
    base = data.draw(near(raw))
    for codec, before in ways(raw, base, layout):
        stored = encode(codec, raw, layout, before)
        assert len(stored) <= len(raw) * 1.0001 + room(codec), codec
        assert decoded(codec, stored, len(raw), layout, before) == raw, codec


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("is_float", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_several_blocks(word: int, is_float: bool, kind: str) -> None:
    layout = WordLayout(word, is_float, 64)
    rng = np.random.default_rng(word)
    raw, base = (fill(kind, (600 << 10) // word, layout, rng) for _ in range(2))
    for codec, before in ways(raw, base, layout):
        stored = encode(codec, raw, layout, before)
        assert len(stored) <= len(raw) * 1.0001 + room(codec), codec
        assert decoded(codec, stored, len(raw), layout, before) == raw, codec


@pytest.mark.parametrize("word", [1, 2])
@pytest.mark.parametrize("codec", [Codec.PLANES, Codec.DELTA, Codec.GROUPS, Codec.ROWS])
def test_every_word_there_is(word: int, codec: Codec) -> None:
    layout = WordLayout(word, True, word)
    every = np.arange(256**word, dtype=f"<u{word}")
    raw, base = every.tobytes(), every[::-1].tobytes()
    before = base if codec in ON_BASE else None
    assert decoded(codec, encode(codec, raw, layout, before), len(raw), layout, before) == raw


@pytest.mark.parametrize("codec", [Codec.PLANES, Codec.DELTA, Codec.GROUPS, Codec.ROWS, Codec.ZSTD])
def test_buffers_at_odd_addresses(codec: Codec) -> None:
    layout = WordLayout(4, True, 64)
    rng = np.random.default_rng(0)
    raw, base = (b"x" + fill("weights", 4096, layout, rng) for _ in range(2))
    before = memoryview(base)[1:] if codec in ON_BASE else None
    stored = b"x" + bytes(encode(codec, memoryview(raw)[1:], layout, before))
    out = bytearray(len(raw))
    decode(codec, memoryview(stored)[1:], memoryview(out)[1:], layout, before)
    assert out[1:] == raw[1:]


def test_raw_is_not_copied() -> None:
    raw = memoryview(bytearray(8))
    assert encode(Codec.RAW, raw, WordLayout(4, True, 4)) is raw


def test_what_should_shrink_shrinks() -> None:
    layout = WordLayout(4, True, 256)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(1 << 17, np.float32) * np.float32(0.02)
    moved = weights * np.float32(1 + 2**-12) + np.float32(1e-6)
    raw, base = moved.tobytes(), weights.tobytes()
    planes = len(encode(Codec.PLANES, raw, layout))
    assert planes < 0.86 * len(raw)
    assert len(encode(Codec.DELTA, raw, layout, base)) < 0.8 * planes
    touched = bytearray(base)
    touched[: 10 * 256] = raw[: 10 * 256]
    assert len(encode(Codec.ROWS, touched, layout, base)) < 4000
    assert len(encode(Codec.CONSTANT, bytes(4096), layout)) == 4
    assert len(encode(Codec.ROWS, bytes(4096), layout)) == 12


def test_groups_are_smaller_where_small_weights_move_as_far_as_large_ones() -> None:
    layout = WordLayout(2, True, 256)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(1 << 17, np.float32) * np.float32(0.02)
    moved = weights + np.float32(1e-3) * rng.standard_normal(1 << 17, np.float32)
    raw, base = ((w.view(np.uint32) >> 16).astype("<u2").tobytes() for w in (moved, weights))
    delta = len(encode(Codec.DELTA, raw, layout, base))
    groups = encode(Codec.GROUPS, raw, layout, base)
    assert len(groups) < 0.96 * delta < 0.96 * len(encode(Codec.PLANES, raw, layout))
    assert decoded(Codec.GROUPS, groups, len(raw), layout, base) == raw


@pytest.mark.parametrize("share", [0.15, 0.3, 0.35, 0.9])
def test_a_plane_of_some_zeros_comes_near_its_entropy(share: float) -> None:
    rng = np.random.default_rng(0)
    there = rng.random(1 << 17) < share
    words = np.where(there, rng.integers(1, 9, 1 << 17), 0).astype("<u1")
    stored = encode(Codec.PLANES, words.tobytes(), WordLayout(1, False, 1))
    bits = share * np.log2(8 / share) + (1 - share) * np.log2(1 / (1 - share))
    assert len(stored) < 1.06 * bits * len(words) / 8


def test_a_sparse_plane_takes_less_than_its_frame_would() -> None:
    layout = WordLayout(2, False, 2)
    rng = np.random.default_rng(0)
    words = np.where(rng.random(1 << 17) < 0.06, rng.integers(1, 4, 1 << 17), 0).astype("<u2")
    stored = encode(Codec.PLANES, words.tobytes(), layout)
    frame = compress_plane(words.astype(np.uint8).data)
    assert len(stored) < 0.8 * len(frame)
    bits = 0.06 * np.log2(3 / 0.06) + 0.94 * np.log2(1 / 0.94)  # entropy per word
    assert len(stored) < 1.2 * bits * len(words) / 8


class TestHostile:
    """Whatever is stored: DamagedError, or something of the right length."""

    LAYOUT = WordLayout(4, True, 64)

    @given(
        codec=st.sampled_from(Codec),
        stored=st.binary(max_size=200),
        words=st.sampled_from((0, 16, 512, 4096)),
        with_base=st.booleans(),
    )
    @example(Codec.PLANES, bytes(4), 16, False)  # no cut at byte 0
    @example(Codec.PLANES, b"\xff\x00\x00\x00", 16, False)  # cuts past the word
    @example(Codec.PLANES, b"\x03\x00\x00\x00" + bytes(64), 16, False)  # a piece of three bytes
    @example(Codec.PLANES, b"\x01\x01\x00\x00" + bytes(64), 16, False)  # a coded piece of four
    @example(Codec.PLANES, b"\x0f\x0f\x0f\x01" + b"\xff" * 16, 16, False)  # lengths past the end
    @example(Codec.ROWS, bytes(4) + b"\x04\0\0\0" + b"\xff" * 4, 16, False)  # more rows than are
    @example(Codec.ROWS, bytes(12), 16, False)  # rows of no bytes
    @example(Codec.ROWS, bytes(4) + b"\x06\0\0\0" + bytes(4), 512, False)  # of half words
    @settings(max_examples=times(150), deadline=None)
    def test_noise(self, codec: Codec, stored: bytes, words: int, with_base: bool) -> None:
        base = bytes(4 * words) if with_base else None
        self.refused_or_whole(codec, stored, 4 * words, base)

    @given(st.data())
    @settings(max_examples=times(150), deadline=None, suppress_health_check=SLOW)
    def test_damage(self, data: st.DataObject) -> None:
        raw = data.draw(contents(self.LAYOUT))
        base = data.draw(near(raw))
        codec, before = data.draw(st.sampled_from(list(ways(raw, base, self.LAYOUT))))
        stored = bytearray(encode(codec, raw, self.LAYOUT, before))
        for _ in range(data.draw(st.integers(1, 3))):
            if stored:  # heads more often than the rest
                end = data.draw(st.sampled_from((min(len(stored), 40), len(stored))))
                stored[data.draw(st.integers(0, end - 1))] ^= 1 << data.draw(st.integers(0, 7))
        self.refused_or_whole(codec, bytes(stored), len(raw), before)

    @given(st.data())
    @settings(max_examples=times(50), deadline=None, suppress_health_check=SLOW)
    def test_other_lengths_are_refused(self, data: st.DataObject) -> None:
        raw = data.draw(contents(self.LAYOUT).filter(bool))
        base = data.draw(near(raw))
        codec, before = data.draw(st.sampled_from(list(ways(raw, base, self.LAYOUT))))
        stored = bytes(encode(codec, raw, self.LAYOUT, before))
        cut = data.draw(st.integers(0, len(stored) - 1))
        for wrong in (stored[:cut], stored + b"\0"):
            with pytest.raises(DamagedError):
                decoded(codec, wrong, len(raw), self.LAYOUT, before)

    def refused_or_whole(self, codec: int, stored: bytes, size: int, base: bytes | None) -> None:
        out = bytearray(size)
        with contextlib.suppress(DamagedError):
            decode(codec, stored, memoryview(out), self.LAYOUT, base)
        assert len(out) == size


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.PLANES, Codec.DELTA])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("stated", [100 << 20, (1 << 63) - 1])
def test_a_frame_that_states_too_much_takes_no_memory(
    codec: Codec, sparse: bool, stated: int
) -> None:
    """The frame is a whole one: 100 MiB of zeros in a few kilobytes, or states more than exists."""
    frame = zstandard.compress(bytes(100 << 20))
    if stated != 100 << 20:
        frame = b"\x28\xb5\x2f\xfd\xe0" + stated.to_bytes(8, "little") + bytes(8)
    size = len(frame).to_bytes(4, "little")
    body = size + frame if sparse else frame
    head = bytes([1, 1, sparse, 2 if codec is Codec.DELTA else 0])
    stored = frame if codec is Codec.ZSTD else head + len(body).to_bytes(4, "little") + body
    base = bytes(1000) if codec is Codec.DELTA else None
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match="states"):
            decoded(codec, stored, 1000, WordLayout(1, False, 1), base)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("word", [1, 2, 4, 8])
def test_groups_take_bounded_memory(word: int) -> None:
    """All words are in one group, and the places of its words take more than they do."""
    size, layout = 4 << 20, WordLayout(word, True, word)
    raw = np.arange(size // word, dtype=f"<u{word}").tobytes()
    stored, out = encode(Codec.GROUPS, raw, layout, bytes(size)), bytearray(size)
    tracemalloc.start()
    try:
        decode(Codec.GROUPS, stored, memoryview(out), layout, bytes(size))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out == raw
    assert peak < 16 * size


class TestMisuse:
    LAYOUT = WordLayout(4, True, 8)

    def test_unknown_codec(self) -> None:
        with pytest.raises(FormatError, match="codec 77"):
            decode(77, b"", memoryview(bytearray(8)), self.LAYOUT)

    def test_base_missing_or_not_expected(self) -> None:
        raw = np.arange(1024, dtype="<u4").tobytes()
        delta = encode(Codec.DELTA, raw, self.LAYOUT, bytes(4096))
        groups = encode(Codec.GROUPS, raw, self.LAYOUT, bytes(4096))
        planes = encode(Codec.PLANES, raw, self.LAYOUT)
        rows = encode(Codec.ROWS, raw, self.LAYOUT, bytes(4096))
        for codec, stored, base in (
            (Codec.DELTA, delta, None),
            (Codec.GROUPS, groups, None),
            (Codec.GROUPS, groups, bytes(4092)),
            (Codec.GROUPS, delta, bytes(4096)),
            (Codec.PLANES, delta, None),
            (Codec.DELTA, planes, bytes(4096)),
            (Codec.ROWS, rows, None),
            (Codec.DELTA, delta, bytes(4092)),
        ):
            with pytest.raises(DamagedError):
                decoded(codec, stored, 4096, self.LAYOUT, base)

    def test_lengths_that_do_not_fit(self) -> None:
        for codec, raw, base in (
            (Codec.PLANES, bytes(7), None),
            (Codec.ROWS, bytes(12), None),
            (Codec.DELTA, bytes(8), bytes(4)),
            (Codec.DELTA, bytes(8), None),
            (Codec.GROUPS, bytes(8), None),
            (Codec.CONSTANT, bytes(7) + b"1", None),
        ):
            with pytest.raises(ValueError):
                encode(codec, raw, self.LAYOUT, base)
        with pytest.raises(DamagedError):
            decoded(Codec.ROWS, b"", 12, self.LAYOUT, None)

    def test_views_that_are_not_bytes(self) -> None:
        numbers = memoryview(bytearray(32)).cast("I")
        with pytest.raises(ValueError, match="raw is not a view"):
            encode(Codec.PLANES, numbers, self.LAYOUT)
        with pytest.raises(ValueError, match="out is not a view"):
            decode(Codec.RAW, bytes(8), memoryview(bytearray(16))[::2], self.LAYOUT)
        with pytest.raises(ValueError, match="read-only"):
            decode(Codec.RAW, bytes(8), memoryview(bytes(8)), self.LAYOUT)

    @pytest.mark.parametrize(("word", "row"), [(3, 3), (0, 4), (4, 6), (4, 0)])
    def test_layouts_that_cannot_be(self, word: int, row: int) -> None:
        with pytest.raises(ValueError):
            WordLayout(word, True, row)
