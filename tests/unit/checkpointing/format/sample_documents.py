"""Chunks, tables and manifests to try things on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from checkpointing.codec import Codec
from checkpointing.format.chunks import Chunk
from checkpointing.format.element_types import element
from checkpointing.format.item_table import ItemTable, TensorSpec
from checkpointing.format.manifest import ManifestContent, ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.format.tiles import Box, tile_shape, tiles, whole

SAVE = SaveId("gpt", 42, "0123abcd")
PACKS = [bytes([n]) * 16 for n in range(1, 5)]


def chunk(number: int, raw_length: int = 8, base: Chunk | None = None) -> Chunk:
    """A chunk that differs in everything from one of another number."""
    return Chunk(
        id=number.to_bytes(32, "big"),
        pack=PACKS[number % len(PACKS)],
        offset=8 + 1000 * number,
        length=max(1, raw_length // 2),
        raw_length=raw_length,
        codec=Codec.RAW if base is None else Codec.DELTA,
        checksum=number * 0x9E3779B97F4A7C15 % 2**64,
        base=base,
    )


def filled(
    specs: Mapping[str, tuple[str, tuple[int, ...]]], first: int = 1, depth: int = 0
) -> ItemTable:
    """A table of tensors (dtype and shape by name), each of whole tiles.

    Args:
        first: number of the first chunk.
        depth: bases below each chunk.
    """
    table = ItemTable()
    number = first
    for name, (dtype, shape) in specs.items():
        itemsize = element(dtype).itemsize
        spec = TensorSpec(dtype, shape, tile_shape(shape, itemsize))
        placed = {}
        for box in tiles(whole(shape), spec.tile):
            made: Chunk | None = None
            for _ in range(depth + 1):
                made = chunk(number, box.count * itemsize, made)
                number += 1
            assert made is not None
            placed[box] = made
        table.place(name, spec, placed)
    return table


def content(items: Mapping[str, ItemTable], **header: Any) -> ManifestContent:
    """A manifest of these items, which states all packs that they refer to."""
    packs = {pack: 1000 + pack[0] for table in items.values() for pack in table.packs()}
    fields: dict[str, Any] = {"save": SAVE, "created": 1.5e9, "world_size": 1, **header}
    return ManifestContent(ManifestHeader(**fields), items, packs)


def covers_once(outer: Box, boxes: Sequence[Box]) -> bool:
    """Whether the boxes are disjoint, lie inside `outer`, and fill it."""
    inside = all(box.intersect(outer) == box for box in boxes)
    apart = not any(a.intersect(b) for i, a in enumerate(boxes) for b in boxes[:i])
    return inside and apart and sum(box.count for box in boxes) == outer.count


SHAPES = st.lists(st.integers(1, 9), max_size=4).map(tuple)


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...], empty: bool = False) -> Box:
    """A box inside a tensor of that shape."""
    offsets, sizes = [], []
    for n in shape:
        offsets.append(draw(st.integers(0, n - (not empty))))
        sizes.append(draw(st.integers(not empty, n - offsets[-1])))
    return Box(tuple(offsets), tuple(sizes))
