"""What is moved in columns is what would be written chunk by chunk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.codec import Codec
from checkpointing.format.box_coverage import as_array
from checkpointing.format.chunk_columns import ROW, ChunkColumns, ChunksByBox, ColumnSegment
from checkpointing.format.chunks import Chunk, Place
from checkpointing.format.item_table import ItemTable, TensorSpec, from_bytes, merge, to_bytes
from checkpointing.format.manifest import ItemSummary, summarise
from checkpointing.format.tiles import Box
from tests.unit.checkpointing.format.sample_documents import PACKS, chunk

INDEX = {pack: number for number, pack in enumerate(PACKS)}


def chunk_by_chunk(table: ItemTable) -> bytes:
    """The rows of a table, each field as a column: placed chunks, then their bases."""
    placed = [one for name in table.tensors for one in table.chunks[name].values()]
    found: dict[Place, Chunk] = {}
    for one in placed:
        base = one.base
        while base is not None:
            found.setdefault(base.place, base)
            base = base.base
    bases = sorted(found.values(), key=lambda base: (-base.depth, base.place))
    index = {base.place: len(placed) + number for number, base in enumerate(bases)}
    rows = np.zeros(len(placed) + len(bases), ROW)
    for row, one in zip(rows, [*placed, *bases], strict=True):
        row["id"] = np.frombuffer(one.id, np.uint8)
        row["pack"] = INDEX[one.pack]
        row["base"] = -1 if one.base is None else index[one.base.place]
        for name in ("offset", "length", "raw_length", "codec", "checksum"):
            row[name] = getattr(one, name)
    return b"".join(np.ascontiguousarray(rows[name]).tobytes() for name in ROW.names or ())


def columns_in(data: bytes) -> bytes:
    raw = zstandard.decompress(data)
    end = 4 + int.from_bytes(raw[:4], "little")
    tensors = json.loads(raw[4:end])["tensors"]
    return raw[end + sum(16 * t["chunks"] * len(t["shape"]) for t in tensors) :]


@st.composite
def chains(draw: st.DrawFn, count: int) -> list[Chunk]:
    """Chunks of which some need others, which others may need too."""
    bases: list[Chunk] = []
    for number in range(draw(st.integers(0, 5))):
        base = draw(st.sampled_from([None, *bases]))
        bases.append(chunk(1000 + number, 8, base))
    made = []
    for number in range(count):
        one = chunk(draw(st.integers(1, 40)) * 2, 8, draw(st.sampled_from([None, *bases])))
        made.append(replace(one, offset=10**6 + number, id=one.id))
    return made


@st.composite
def parts(draw: st.DrawFn) -> list[ItemTable]:
    """What ranks have written of a few tensors, which they share anyhow."""
    sizes = draw(st.lists(st.integers(0, 8), max_size=4))
    made = iter(draw(chains(sum(sizes))))
    found = [ItemTable() for _ in range(draw(st.integers(1, 4)))]
    for number, size in enumerate(sizes):
        spec = TensorSpec("int64", (size,), (1,))
        for table in found:
            table.place(f"m/{number}", spec, {})
        for at in range(size):
            table = draw(st.sampled_from(found))
            table.place(f"m/{number}", spec, {Box((at,), (1,)): next(made)})
    return found


def by_hand(tables: Sequence[ItemTable]) -> ItemTable:
    whole = ItemTable()
    for table in tables:
        for name, placed in table.chunks.items():
            whole.place(name, table.tensors[name], placed)
    return whole


def read_back(table: ItemTable) -> ItemTable:
    """From packs in an order of its own, as each rank has it."""
    used = sorted(table.packs(), reverse=True)
    numbers: Mapping[bytes, int] = {pack: number for number, pack in enumerate(used)}
    return from_bytes(to_bytes(table, numbers), used, "there", is_part=True)


@given(parts())
def test_what_ranks_wrote_is_moved_as_it_is(tables: list[ItemTable]) -> None:
    whole = by_hand(tables)
    assert columns_in(to_bytes(whole, INDEX)) == chunk_by_chunk(whole)
    merged = merge([read_back(table) for table in tables])
    data = to_bytes(merged, INDEX)
    assert columns_in(data) == chunk_by_chunk(whole)
    assert from_bytes(data, PACKS, "there") == whole == merged
    lengths = {one.id: one.length for placed in whole.chunks.values() for one in placed.values()}
    count = sum(len(placed) for placed in whole.chunks.values())
    expected = ItemSummary(len(whole.tensors), count, 8 * count, sum(lengths.values()))
    assert summarise(merged) == summarise(whole) == expected


@given(st.data(), st.integers(0, 3))
def test_boxes_that_reach_another_are_found_in_their_order(data: st.DataObject, dims: int) -> None:
    def boxes(least: int) -> st.SearchStrategy[Box]:
        offsets = st.tuples(*[st.integers(0, 12)] * dims)
        return st.builds(Box, offsets, st.tuples(*[st.integers(least, 6)] * dims))

    segments: list[ColumnSegment] = []
    placed: list[tuple[Box, Chunk]] = []
    for _ in range(data.draw(st.integers(1, 2))):
        own = data.draw(st.lists(boxes(1), max_size=20))
        chunks = [chunk(len(placed) + number, 8) for number in range(len(own))]
        segments.append(ColumnSegment(as_array(own, dims), ChunkColumns.of(chunks), 0))
        placed += zip(own, chunks, strict=True)
    found = ChunksByBox(segments)
    for box in data.draw(st.lists(boxes(1), min_size=1, max_size=3)):
        assert list(found.reaching(box)) == [pair for pair in placed if pair[0].intersect(box)]


def test_tensors_come_in_their_order_whatever_that_of_the_chunks_is() -> None:
    spec, box = TensorSpec("int64", (1,), (1,)), Box((0,), (1,))
    placed = {name: {box: chunk(number, 8)} for number, name in enumerate("ab", 1)}
    table = ItemTable({"a": spec, "b": spec}, {"b": placed["b"], "a": placed["a"]})
    assert read_back(table).chunks == placed


def test_a_box_that_two_ranks_wrote_is_that_of_the_last() -> None:
    tables = [ItemTable(), ItemTable()]
    spec, box = TensorSpec("int64", (1,), (1,)), Box((0,), (1,))
    for number, table in enumerate(tables):
        table.place("w", spec, {box: chunk(1 + number, 8)})
    merged = merge([read_back(table) for table in tables])
    assert merged.chunks["w"] == {box: chunk(2, 8)}


def test_a_chunk_in_no_known_pack_is_refused() -> None:
    table = ItemTable()
    delta = replace(chunk(2, 8, chunk(1, 8)), codec=Codec.DELTA)
    table.place("w", TensorSpec("int64", (1,), (1,)), {Box((0,), (1,)): delta})
    for missing in (chunk(1).pack, chunk(2).pack):
        left = [pack for pack in PACKS if pack != missing]
        with pytest.raises(KeyError, match="not listed"):
            to_bytes(table, {pack: number for number, pack in enumerate(left)})
