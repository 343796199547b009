"""Inputs that a reader once failed on, as small as they could be made: it reads or refuses them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpointing.format import packs
from tests.faults.fuzzing import Reader, bounded, failure_of
from tests.faults.readers import readers

DEEP = b'{"a":' * 5_000
DIGITS = b"9" * 4_300  # the most that Python turns into a number, and prints
FOUND: dict[str, list[bytes]] = {
    "events": [
        b"[" * 5_000 + b"\n",
        b'{"time":1' + b"0" * 400 + b',"kind":""}\n',
        b'{"time":1e99,"kind":""}\n',
        b'{"time":NaN,"kind":""}\n',
    ],
    "channel": [DEEP + b"\n", b'{"a":1}\n', b'{"kind":8}\n'],
    "durable-json": [DEEP],
    "spec": [
        b"&d {e: *d}",
        b"a0: &a0 [x, x]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (i, i, i - 1, i - 1)
                                       for i in range(1, 40)),
        b"a: 0x" + b"9" * 5_000,
        b"a: " + b"9" * 5_000,
        b"a: !!int ''",
        b"a: 2001-99-99",
        b"[" * 5_000,
    ],
    "table": [bytes.fromhex("28b52ffd a0 00000080 010000")],  # states 2 GiB, has none
}  # fmt: skip


def changed(key: str, value: object, *more: tuple[str, object]) -> Callable[[bytes], bytes]:
    """JSON with another value at a dotted key."""

    def change(seed: bytes) -> bytes:
        body: Any = json.loads(seed)
        for path, new in ((key, value), *more):
            *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
            where = body
            for parent in parents:
                where = where[parent]
            where[last] = new
        return json.dumps(body).encode()

    return change


def word(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Bytes with the first of these words as another."""

    def change(seed: bytes) -> bytes:
        assert old in seed
        return seed.replace(old, new, 1)

    return change


def header(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A table whose JSON is changed."""

    def changes(raw: bytes) -> bytes:
        end = 4 + int.from_bytes(raw[:4], "little")
        head = change(raw[4:end])
        return len(head).to_bytes(4, "little") + head + raw[end:]

    return changes


def long_chunk(data: bytes) -> bytes:
    """The end of a pack, the last of whose chunks is as long as no number of 64 bits can say."""
    rows = np.frombuffer(data[: -packs.TRAILER.itemsize], packs.ROW).copy()
    rows["length"][-1] = 2**64 - 1 - int(rows["offset"][-1])
    return rows.tobytes() + data[-packs.TRAILER.itemsize :]


# reader, which of its valid bytes, and what is changed in them
CHANGED: list[tuple[str, int, Callable[[bytes], bytes]]] = [
    ("pack-sealed", 0, long_chunk),
    ("owner-sealed", 0, word(b"2.0", b"1" + b"0" * 400)),
    ("manifest-sealed", 0, changed("sections.packs.length", int(DIGITS))),
    ("manifest-sealed", 0, changed("metrics.loss", 10**400)),
    ("table-sealed", 0, header(changed("tensors.0.tile", [0, 0]))),
    ("table-sealed", 0, header(changed("tensors.0.shape", [int(DIGITS)] * 2))),
    ("table-sealed", 0, header(changed("values", {"a": {"$dict": [[[1], 2]]}}))),
    ("table-sealed", 0, header(changed("values", {"a": {"$ordered": [1]}}))),
    ("columns-sealed", 0, changed("2.size.0", "i8", ("2.size.1.0", -1))),
    ("columns-sealed", 0, changed("2.begin.0", "i8", ("2.begin.1.0", -1))),
    ("columns-sealed", 1, changed("2.samples.1", [2**62, 2**62])),
    ("columns-sealed", 1, changed("2.tokens.1.0", -1)),
    ("columns-sealed", 1, changed("2.digests.0", "u2")),
    ("spool-sealed", 0, changed("slot_bytes", 2**62, ("bytes", 2**61), ("layout.places",
        [["a", "uint8", [2**61], [0], [2**61], 0]]))),
    ("ring", 0, changed("generation.world_size", 10**12)),
]  # fmt: skip


def by_name(work: Path) -> dict[str, Reader]:
    return {reader.name: reader for reader in readers(work)}


@pytest.mark.parametrize(("name", "number"), [(n, i) for n in FOUND for i in range(len(FOUND[n]))])
def test_found(name: str, number: int, tmp_path: Path) -> None:
    reader = by_name(tmp_path)[name]
    with bounded():
        assert failure_of(reader, FOUND[name][number]) is None


@pytest.mark.parametrize("number", range(len(CHANGED)))
def test_found_below_the_hashes(number: int, tmp_path: Path) -> None:
    name, seed, change = CHANGED[number]
    reader = by_name(tmp_path)[name]
    data = change(reader.seeds[seed])
    with bounded():
        assert failure_of(reader, data) is None
