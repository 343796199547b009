"""Tables: merged from what ranks wrote, read back as they were, refused if they are not whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.codec import Codec
from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.chunk_columns import ROW
from checkpointing.format.chunks import MAX_DEPTH
from checkpointing.format.item_table import ItemTable, TensorSpec, from_bytes, merge, to_bytes
from checkpointing.format.tiles import Box, tiles, whole
from tests.unit.checkpointing.format.sample_documents import PACKS, SHAPES, chunk, filled

INDEX = {pack: i for i, pack in enumerate(PACKS)}
DTYPES = st.sampled_from(["float32", "bfloat16", "bool", "complex128", "float8_e5m2"])
SPECS = st.dictionaries(st.text(max_size=8), st.tuples(DTYPES, SHAPES), max_size=4)
TILED = {
    "w": ("float32", (700, 400)),
    "b": ("int8", (3,)),
    "n": ("int64", ()),
    "e": ("bool", (0, 2)),
}


def read_back(table: ItemTable) -> ItemTable:
    """In columns; a table of few chunks is read at once, with the same result."""
    data = to_bytes(table, INDEX)
    with mock.patch("checkpointing.format.item_table._MANY", 0):
        found = from_bytes(data, PACKS, "there")
    assert from_bytes(data, PACKS, "there") == found
    return found


@given(SPECS, st.integers(0, 3), st.dictionaries(st.text(max_size=5), st.integers(), max_size=3))
def test_tables_are_read_back(
    specs: dict[str, tuple[str, tuple[int, ...]]], depth: int, values: dict[str, int]
) -> None:
    table = filled(specs, depth=depth)
    table.values.update(values)
    assert read_back(table) == table


def test_what_a_table_says() -> None:
    table = filled(TILED, depth=1)
    assert len(table.chunks["w"]) == 8
    assert len(table.chunks["n"]) == 1, "a scalar has the empty box"
    assert table.chunks["e"] == {}
    assert table.raw_bytes == 700 * 400 * 4 + 3 + 8
    assert len(list(table.all_chunks())) == 2 * (8 + 1 + 1), "bases count too"
    assert table.packs() == {c.pack for c in table.all_chunks()}


def test_a_base_that_several_chunks_need_is_stored_once() -> None:
    base = chunk(1, 8)
    table = ItemTable()
    spec = TensorSpec("int64", (2,), (1,))
    placed = {Box((i,), (1,)): chunk(i + 2, 8, base) for i in range(2)}
    table.place("w", spec, placed)
    again = read_back(table)
    first, second = again.chunks["w"].values()
    assert first.base is second.base
    assert first.base == base


# --- merging ------------------------------------------------------------------------------------


@given(SHAPES, st.integers(1, 4), st.data())
def test_parts_of_ranks_make_the_whole(
    shape: tuple[int, ...], ranks: int, data: st.DataObject
) -> None:
    tile = tuple(data.draw(st.integers(1, n)) for n in shape)
    spec = TensorSpec("int8", shape, tile)
    boxes = list(tiles(whole(shape), tile))
    placed = {box: chunk(i + 1, box.count) for i, box in enumerate(boxes)}
    owner = [data.draw(st.integers(0, ranks - 1)) for _ in boxes]
    parts = []
    for rank in range(ranks):
        part = ItemTable(values={f"of {rank}": rank, "of all": rank})
        part.place(
            "w", spec, {b: placed[b] for b, r in zip(boxes, owner, strict=True) if r == rank}
        )
        parts.append(part)
    merged = merge(parts)
    assert merged.chunks == {"w": placed}
    assert merged.values["of all"] == 0, "the first rank's counts"
    assert len(merged.values) == ranks + 1


def test_parts_that_do_not_fit_are_refused() -> None:
    one, other = ItemTable(), ItemTable()
    spec = TensorSpec("int8", (4,), (4,))
    one.place("w", spec, {Box((0,), (2,)): chunk(1, 2)})
    with pytest.raises(ValueError, match="cover 2 of its 4 elements"):
        merge([one])
    other.place("w", spec, {Box((1,), (3,)): chunk(2, 3)})
    with pytest.raises(ValueError, match="'w' overlap"):
        merge([one, other])
    with pytest.raises(ValueError, match="'w' is both"):
        merge([one, filled({"w": ("int16", (4,))})])


def test_a_table_that_no_reader_takes_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(TILED)
    monkeypatch.setattr("checkpointing.format.item_table.MAX_TABLE", 500)
    with pytest.raises(ValueError, match="allows 500"):
        to_bytes(table, INDEX)


# --- damage -------------------------------------------------------------------------------------


def unpacked(table: ItemTable) -> tuple[dict[str, Any], bytes]:
    """The JSON and what follows it."""
    raw = zstandard.decompress(to_bytes(table, INDEX))
    end = 4 + int.from_bytes(raw[:4], "little")
    return json.loads(raw[4:end]), raw[end:]


def packed(header: object, rest: bytes) -> bytes:
    head = json.dumps(header).encode()
    return zstandard.compress(len(head).to_bytes(4, "little") + head + rest)


def load(data: bytes, packs: list[bytes] = PACKS) -> ItemTable:
    return from_bytes(data, packs, "there")


def test_every_flipped_byte_is_damage_or_of_no_account() -> None:
    """The section has a hash of its own; without it nothing but these two errors may come."""
    data = to_bytes(filled(TILED, depth=1), INDEX)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        try:
            load(bytes(damaged))
        except (DamagedError, FormatError):
            continue


def test_every_flipped_byte_below_the_compression_is_damage_or_of_no_account() -> None:
    raw = zstandard.decompress(to_bytes(filled(TILED, depth=1), INDEX))
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << (at % 8)
        try:
            load(zstandard.compress(bytes(damaged)))
        except (DamagedError, FormatError):
            continue


def test_every_truncation_is_damage() -> None:
    data = to_bytes(filled(TILED), INDEX)
    raw = zstandard.decompress(data)
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            load(data[:size])
    for size in range(0, len(raw), 3):
        with pytest.raises(DamagedError):
            load(zstandard.compress(raw[:size]))


def test_a_size_that_is_not_stated_or_impossible_is_refused_before_memory_is_taken() -> None:
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 100)
    with pytest.raises(DamagedError, match="states a size of -1 bytes"):
        load(streamed)
    frame = bytearray(zstandard.compress(bytes(2**17)))
    assert frame[4] >> 6 == 2, "a content size of four bytes"
    frame[5:9] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(DamagedError, match="states a size of 4294967295 bytes"):
        load(bytes(frame))
    bomb = zstandard.compress(bytes(65 << 20))  # what it states is true
    with pytest.raises(DamagedError, match=f"states a size of {65 << 20} bytes"):
        load(bomb)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda h: h["tensors"][0].update(dtype="float3"), "dtype 'float3' is unknown"),
        (lambda h: h["tensors"][0].update(shape=[-1, 400]), "field 'shape'"),
        (lambda h: h["tensors"][0].update(shape=[700, 401]), "the chunks of 'w' cover"),
        (lambda h: h["tensors"][0].update(tile=[700]), "tile"),
        (lambda h: h["tensors"][0].update(tile=[0, 400]), "'w' lie outside"),
        (lambda h: h["tensors"][0].update(shape=[1 << 40, 1 << 40]), "is too large"),
        (lambda h: h["tensors"][3].update(shape=[0, 1 << 63]), "field 'shape'"),
        (lambda h: h["tensors"][0].update(dtype="float64"), "bytes for"),
        (lambda h: h["tensors"][0].update(chunks=10**9), "its columns are cut off"),
        (lambda h: h["tensors"][0].update(chunks=9), "its boxes|its columns|'w' lie outside"),
        (lambda h: h["tensors"][2].update(chunks=10**9), "its columns are cut off"),
        (lambda h: h["tensors"].append(h["tensors"][0]), "'w' twice"),
        (lambda h: h.update(bases=1), "its columns are cut off"),
        (lambda h: h.update(bases=-1), "field 'bases'"),
        (lambda h: h.pop("values"), "field 'values'"),
        (lambda h: h.update(tensors=[1]), "not an object"),
    ],
)
def test_headers_that_do_not_fit_are_refused(
    change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    header, rest = unpacked(filled(TILED))
    load(packed(header, rest))
    change(header)
    with pytest.raises((DamagedError, FormatError), match=problem):
        load(packed(header, rest))


@pytest.mark.parametrize(
    ("column", "value", "error", "problem"),
    [
        ("pack", 99, DamagedError, "row 0 points outside its tables"),
        ("base", 0, DamagedError, "row 0 points outside its tables"),  # itself: no end
        ("base", -2, DamagedError, "row 0 points outside its tables"),
        ("base", 999, DamagedError, "row 0 points outside its tables"),
        ("codec", 77, FormatError, "codec 77 is unknown"),
        ("raw_length", 9, DamagedError, "9 bytes for"),
        ("raw_length", 2**63 + 8, DamagedError, "9223372036854775816 bytes for"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    column: str, value: int, error: type[Exception], problem: str
) -> None:
    table = ItemTable()
    table.place(
        "w", TensorSpec("int64", (2,), (1,)), {Box((i,), (1,)): chunk(i + 1) for i in range(2)}
    )
    header, rest = unpacked(table)
    boxes = 2 * 2 * 8
    at = boxes + 2 * sum(
        ROW[name].itemsize for name in (ROW.names or ())[: (ROW.names or ()).index(column)]
    )
    kind = ROW[column].base
    damaged = rest[:at] + np.array([value], kind).tobytes() + rest[at + kind.itemsize :]
    with pytest.raises(error, match=problem):
        load(packed(header, damaged))


def test_chunks_of_a_box_are_found_without_the_others() -> None:
    table = filled(TILED)
    found = read_back(table)
    for name, (_, shape) in TILED.items():
        for box in (whole(shape), Box((0,) * len(shape), tuple(min(n, 1) for n in shape))):
            assert dict(found.reaching(name, box)) == dict(table.reaching(name, box))
    corner = Box((650, 10), (20, 10))
    ((box, one),) = found.reaching("w", corner)
    assert corner.intersect(box) == corner
    assert one == table.chunks["w"][box]


def test_part_records_with_the_same_tensors_share_none_of_their_tables() -> None:
    """The head of a part record is parsed once for many ranks."""
    table = ItemTable({"w": TensorSpec("int64", (1,), (1,))}, {"w": {}}, {"step": 1})
    data = to_bytes(table, {})
    first, second = (from_bytes(data, [], where, is_part=True) for where in ("here", "there"))
    first.describe("other", TensorSpec("int64", (1,), (1,)))
    first.values["loss"] = 2
    assert second == from_bytes(data, [], "there", is_part=True) == table


def test_the_damaged_head_of_a_part_record_is_named_each_time() -> None:
    table = ItemTable({"w": TensorSpec("int64", (1,), (1,))}, {"w": {}})
    header, rest = unpacked(table)
    del header["tensors"][0]["dtype"]
    for where in ("here", "there"):
        with pytest.raises(DamagedError, match=rf"^{where}\.tensors\[0\]: field 'dtype'"):
            from_bytes(packed(header, rest), [], where, is_part=True)


@given(st.integers(1, MAX_DEPTH), st.integers(0, 3))
def test_a_base_is_one_object_for_all_that_need_it(depth: int, number: int) -> None:
    bases = [chunk(0, 8)]
    for i in range(1, depth):
        bases.append(replace(chunk(i, 8, bases[-1]), codec=Codec.DELTA))
    placed = {
        Box((i,), (1,)): replace(chunk(500 + i, 8, bases[-1]), codec=Codec.DELTA) for i in range(4)
    }
    table = ItemTable()
    table.place("w", TensorSpec("int64", (4,), (1,)), placed)
    found = read_back(table)
    ((_, one),) = found.reaching("w", Box((number,), (1,)))
    assert one == placed[Box((number,), (1,))]
    assert found.chunks["w"] == placed
    assert all(other.base is one.base for other in found.chunks["w"].values())


def test_more_bases_than_any_save_makes_are_refused() -> None:
    last = chunk(0, 8)
    for i in range(1, MAX_DEPTH + 2):
        last = replace(chunk(i, 8, last), codec=Codec.DELTA)
    table = ItemTable()
    table.place("w", TensorSpec("int64", (1,), (1,)), {Box((0,), (1,)): last})
    with pytest.raises(DamagedError, match=f"more than {MAX_DEPTH} bases"):
        read_back(table)


def test_a_base_of_another_length_is_refused() -> None:
    table = ItemTable()
    odd = replace(chunk(2, 8, chunk(1, 16)), codec=Codec.DELTA)
    table.place("w", TensorSpec("int64", (1,), (1,)), {Box((0,), (1,)): odd})
    with pytest.raises(DamagedError, match="a base of another length in 'w'"):
        load(to_bytes(table, INDEX))
