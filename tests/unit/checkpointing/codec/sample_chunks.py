"""Chunks to try codecs on: all layouts, and contents that are easy to get wrong."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from checkpointing.codec import WordLayout

COUNTS = (0, 1, 2, 7, 511, 512, 513, 4096, 4097, 5000)  # words: around what planes.py looks at

# bit patterns per word size: zeros of both signs, denormals, infinities, NaNs with payloads
_SPECIAL = {
    1: (0x00, 0x80, 0x01, 0x7F, 0xFF),
    2: (0x0000, 0x8000, 0x0001, 0x7F80, 0x7FC1, 0xFF81, 0xFFFF, 0x7C00, 0x7E01),
    4: (0x00000000, 0x80000000, 0x00000001, 0x7F800000, 0x7FC00001, 0xFF800ABC, 0xFFFFFFFF),
    8: (0, 1 << 63, 1, 0x7FF0000000000000, 0x7FF8000000000001, 0xFFF0000000000ABC, (1 << 64) - 1),
}


@st.composite
def layouts(draw: st.DrawFn) -> WordLayout:
    """Any layout with short rows."""
    word = draw(st.sampled_from((1, 2, 4, 8)))
    return WordLayout(word, draw(st.booleans()), word * draw(st.sampled_from((1, 3, 16))))


@st.composite
def contents(draw: st.DrawFn, layout: WordLayout) -> bytes:
    """A whole number of rows: noise, runs, specials, weights, sparse or constant words."""
    per_row = layout.row // layout.word
    count = draw(st.sampled_from(COUNTS)) // per_row * per_row
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(("noise", "run", "special", "weights", "sparse", "constant")))
    return fill(kind, count, layout, rng)


@st.composite
def near(draw: st.DrawFn, raw: bytes) -> bytes:
    """Other content of the same length: what a step of training, or none, would make of it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from((0.0, 0.01, 1.0)))
    other = np.frombuffer(raw, np.uint8).copy()
    changed = rng.random(len(other)) < share
    other[changed] += rng.integers(0, 256, int(changed.sum()), np.uint8)
    return other.tobytes()


def fill(kind: str, count: int, layout: WordLayout, rng: np.random.Generator) -> bytes:
    """`count` words of a kind."""
    dtype = np.dtype(f"<u{layout.word}")
    special = np.array(_SPECIAL[layout.word], dtype)
    if kind == "noise":
        return rng.bytes(count * layout.word)
    if kind == "run":
        return (np.arange(count) // 3).astype(dtype).tobytes()
    if kind == "special":
        return rng.choice(special, count).tobytes()
    if kind == "constant":
        return np.full(count, rng.choice(special), dtype).tobytes()
    if kind == "sparse":
        return (
            np.where(rng.random(count) < 0.05, rng.integers(1, 99, count), 0)
            .astype(dtype)
            .tobytes()
        )
    wide = rng.standard_normal(count) * 0.02
    return _weights(wide, layout.word)


def _weights(wide: np.ndarray[tuple[int], np.dtype[np.float64]], word: int) -> bytes:
    if word == 8:
        return wide.tobytes()
    single = wide.astype(np.float32).view(np.uint32)
    return (single >> (32 - 8 * word)).astype(f"<u{word}").tobytes()  # float32, bfloat16, its top
