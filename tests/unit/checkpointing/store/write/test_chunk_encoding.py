"""Which base a chunk is stored relative to, and when a new one is due."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from checkpointing.codec import (
    AdaptiveEncoder,
    Codec,
    CodecChooser,
    EncodeBudget,
    WordLayout,
    decode,
)
from checkpointing.format.chunks import Chunk, chunk_id
from checkpointing.format.element_types import element
from checkpointing.storage import Buffer
from checkpointing.store.write.chunk_encoding import ChunkEncoder

COUNT = 1 << 16  # words
LAYOUT = WordLayout(4, True, 4)


@dataclass
class Place:
    """One place of the tensors of a run, save after save."""

    encoder: ChunkEncoder
    chunks: list[Chunk] = field(default_factory=list)
    contents: dict[bytes, bytes] = field(default_factory=dict)

    def save(self, raw: bytes) -> Chunk:
        before = self.chunks[-1] if self.chunks else None
        new = self.encoder.encode(raw, "w", element("float32"), 4, before, self.read)
        id_ = chunk_id("float32", raw)
        self.contents[id_] = raw
        chunk = Chunk(id_, bytes(16), 0, len(new.stored), len(raw), new.codec, 0, new.base)
        self.chunks.append(chunk)
        out = bytearray(len(raw))
        base = None if new.base is None else self.read(new.base)
        decode(new.codec, new.stored, memoryview(out), LAYOUT, base)
        assert out == raw
        return chunk

    def read(self, chunk: Chunk) -> Buffer:
        return self.contents[chunk.id]


def place(depth: int) -> Place:
    return Place(
        ChunkEncoder(AdaptiveEncoder(CodecChooser(share=1.0, clock=lambda: 0.0)), depth=depth)
    )


def walk(steps: int, size: float = 1e-4) -> list[bytes]:
    """Weights that move on at random, so that what lies further back is further off."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(COUNT, np.float32) * np.float32(0.02)
    found = []
    for _ in range(steps):
        found.append(weights.tobytes())
        weights = weights + np.float32(size) * rng.standard_normal(COUNT, np.float32)
    return found


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_chunk_is_deeper_than_it_may_be(depth: int) -> None:
    here = place(depth)
    depths = [here.save(raw).depth for raw in walk(20)]
    assert depths[: depth + 1] == list(range(depth + 1))
    assert max(depths) == depth


def test_deeper_stores_less() -> None:
    stored = []
    for depth in (1, 2, 4):
        here = place(depth)
        stored.append(sum(here.save(raw).length for raw in walk(20)))
    assert stored[0] > stored[1] > stored[2]


def test_a_base_that_has_served_its_time_gives_way_to_its_own_base() -> None:
    here = place(2)
    for raw in walk(4):
        here.save(raw)
    keyframe, first, second, third = here.chunks
    assert (second.base, third.base) == (first, keyframe)  # to `first` it would be larger than both


def test_a_keyframe_is_renewed_when_deltas_outgrow_their_mean() -> None:
    here = place(1)
    for raw in walk(30, size=5e-4):
        here.save(raw)
    keyframes = [i for i, chunk in enumerate(here.chunks) if chunk.base is None]
    assert 3 <= len(keyframes) < 15
    for start, end in pairwise(keyframes):
        lengths = [chunk.length for chunk in here.chunks[start:end]]
        assert len(lengths) > 1
        assert all(n * i <= sum(lengths[:i]) for i, n in enumerate(lengths) if i > 1)


def test_what_is_nothing_like_its_base_stands_alone() -> None:
    here = place(2)
    for raw in walk(3):
        here.save(raw)
    other = np.random.default_rng(1).standard_normal(COUNT, np.float32).tobytes()
    assert here.save(other).base is None
    assert here.chunks[-1].codec is Codec.PLANES


def test_what_is_not_to_be_encoded_is_raw_and_reads_no_base() -> None:
    here = place(1)
    first, second = walk(2)
    keyframe = here.save(first)
    budget = EncodeBudget(len(second), only_if_slower=True)
    budget.encoded(1 << 20, 1 << 19, 1.0)
    budget.sent(64 << 20, 0.01, is_bound=True)
    here.contents.clear()  # so that a read would fail
    args = (second, "w", element("float32"), 4, keyframe, here.read)
    new = here.encoder.encode(*args, budget)
    assert (new.codec, new.stored, new.base) == (Codec.RAW, second, None)
    zeros = here.encoder.encode(bytes(len(second)), *args[1:], budget)
    assert zeros.codec is Codec.CONSTANT
    zeros = here.encoder.encode(bytes(len(second)), *args[1:], budget, is_allowed=True)
    assert zeros.codec is Codec.CONSTANT


@pytest.mark.parametrize("depth", [0, -1])
def test_a_depth_without_bases_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="depth"):
        ChunkEncoder(depth=depth)
