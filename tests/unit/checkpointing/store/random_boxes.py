"""Random tensors and random ways to cut them, for hypothesis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from checkpointing.format.element_types import ELEMENTS, element
from checkpointing.format.tiles import Box, whole

Array = NDArray[Any]
DTYPES = sorted(ELEMENTS)
_SHAPES = st.one_of(
    st.just(()),
    st.tuples(st.integers(0, 9)),
    st.tuples(st.integers(1, 5000)),
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
    st.sampled_from([(700, 500), (3, 200_001), (1_000_003,), (257, 3, 401)]),  # several tiles
    st.tuples(*[st.integers(0, 9)] * 3),
    st.tuples(*[st.integers(0, 5)] * 4),
)
_FILLS = ("random", "zeros", "constant", "smooth", "negative zeros", "nan payloads")


@dataclass(frozen=True)
class Tensor:
    """A tensor's elements, as bits."""

    dtype: str
    data: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


Tensors = Mapping[str, Tensor]  # by full name


def fill(how: str, dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Elements of a dtype, in a way that some codec or float may stumble over."""
    kind = element(dtype)
    count = int(np.prod(shape)) * kind.itemsize // kind.word
    top = np.array(1 << (8 * kind.word - 1), f"u{kind.word}")
    if how == "zeros":
        words = np.zeros(count, f"u{kind.word}")
    elif how == "constant":
        words = np.full(count, rng.integers(256), f"u{kind.word}")
    elif how == "smooth":
        words = np.arange(count).astype(f"u{kind.word}")
    elif how == "negative zeros":
        words = np.where(rng.random(count) < 0.5, top, 0).astype(f"u{kind.word}")
    elif how == "nan payloads":  # all bits of the exponent, and any others
        words = rng.integers(0, 256, count).astype(f"u{kind.word}") | (top - top // 32)
    else:
        words = np.frombuffer(rng.bytes(count * kind.word), f"u{kind.word}").copy()
    return (
        words.view(kind.bits).reshape(shape)
        if kind.word == kind.itemsize
        else _wide(words, kind.bits, shape)
    )


def _wide(words: Array, bits: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    return np.frombuffer(words.tobytes(), bits).copy().reshape(shape)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    """One to four tensors of two items."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    made = {}
    for number in range(draw(st.integers(1, 4))):
        dtype, shape = draw(st.sampled_from(DTYPES)), draw(_SHAPES)
        data = fill(draw(st.sampled_from(_FILLS)), dtype, shape, rng)
        made[f"{draw(st.sampled_from(['model', 'optim']))}/t{number}"] = Tensor(dtype, data)
    return made


def changed(before: Tensors, rng: np.random.Generator) -> dict[str, Tensor]:
    """The next step: some tensors as they were, some with a few elements changed, some all new."""
    after = {}
    for name, tensor in before.items():
        data, share = tensor.data.copy(), rng.choice([0.0, 0.01, 1.0])
        flat = data.reshape(-1).view(np.uint8)
        hit = rng.random(len(flat)) < share
        flat[hit] = rng.integers(0, 256, int(hit.sum()), np.uint8)
        after[name] = Tensor(tensor.dtype, data)
    return after


def cut(shape: tuple[int, ...], parts: int, rng: np.random.Generator) -> list[Box]:
    """Boxes that cover a tensor exactly once: row shards, column shards, blocks, any of them."""
    boxes = [whole(shape)]
    for _ in range(parts - 1):
        box = boxes.pop(int(rng.integers(len(boxes))))
        boxes += _halves(box, rng)
    return boxes


def box_in(shape: Sequence[int], rng: np.random.Generator) -> Box:
    """Any box of a tensor, maybe an empty one."""
    ends = [sorted(rng.integers(0, size + 1, 2).tolist()) for size in shape]
    return Box(tuple(a for a, _ in ends), tuple(b - a for a, b in ends))


def _halves(box: Box, rng: np.random.Generator) -> list[Box]:
    if not box.sizes:
        return [box]
    dim = int(rng.integers(len(box.sizes)))
    at = int(rng.integers(0, box.sizes[dim] + 1))  # at the edge: an empty shard
    first = tuple(at if d == dim else n for d, n in enumerate(box.sizes))
    rest = tuple(n - at if d == dim else n for d, n in enumerate(box.sizes))
    start = tuple(o + at if d == dim else o for d, o in enumerate(box.offsets))
    return [Box(box.offsets, first), Box(start, rest)]
