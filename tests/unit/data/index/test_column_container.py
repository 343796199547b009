"""The container: what is written is read, and whatever is not is an error, never a crash."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from data.errors import IndexFileError
from data.index import column_container
from data.index.column_container import MAGIC, IndexColumns, narrow, pack, unpack

dtypes = st.sampled_from(["u1", "u2", "u4", "u8", "i8"])
values = st.tuples(dtypes, st.lists(st.integers(0, 200), max_size=20))
Loader = Callable[[Path, str], IndexColumns]
LOADERS: list[Loader] = [column_container.load, column_container.load_mapped]


def sealed(body: bytes) -> bytes:
    return body + blake3(body).digest()


def container(header: Any, rest: bytes = b"", version: int = 1) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = struct.pack("<8sII", MAGIC, version, len(text)) + text
    return sealed(body + bytes(-len(body) % 8) + rest)


def header(*listed: Any, kind: str = "k", meta: Any = None) -> dict[str, Any]:
    return {"kind": kind, "meta": meta or {}, "columns": list(listed)}


@given(st.dictionaries(st.text(max_size=5), values, max_size=5))
def test_columns_come_back(made: dict[str, tuple[str, list[int]]]) -> None:
    written = {name: np.array(numbers, dtype) for name, (dtype, numbers) in made.items()}
    found = unpack(pack("k", {"a": [1, None]}, written), "k", "here")
    assert found.meta == {"a": [1, None]}
    assert list(found.columns) == list(written)
    for name, column in written.items():
        assert found.columns[name].dtype == column.dtype
        assert found.columns[name].tolist() == column.tolist()


@pytest.mark.parametrize("load", LOADERS)
def test_from_files_without_a_copy(tmp_path: Path, load: Loader) -> None:
    path = tmp_path / "f.index"
    path.write_bytes(pack("k", {}, {"x": np.arange(1000, dtype=np.uint32)}))
    column = load(path, "k").columns["x"]
    assert column.tolist() == list(range(1000))
    assert not column.flags.owndata
    assert not column.flags.writeable


@pytest.mark.parametrize("load", LOADERS)
def test_every_flipped_byte_and_every_cut_is_noticed(tmp_path: Path, load: Loader) -> None:
    path = tmp_path / "f.index"
    whole = pack("k", {}, {"x": np.arange(5, dtype=np.uint16)})
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1
        for content in (bytes(changed), whole[:at]):
            path.write_bytes(content)
            with pytest.raises(IndexFileError, match=r"f\.index"):
                load(path, "k")
    path.write_bytes(whole + b"\0")
    with pytest.raises(IndexFileError, match="damaged"):
        load(path, "k")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "damaged"),
        (sealed(b""), "cut short"),
        (sealed(b"x" * 100), "is not an index"),
        (container(header(), version=2), "of version 2"),
        (sealed(struct.pack("<8sII", MAGIC, 1, 2**32 - 1)), "header of 4294967295 bytes"),
        (container(b"{"), "not JSON"),
        (container(b"[" * 100_000), "not JSON"),
        (container([1]), "not a JSON object"),
        (container(header(kind="other")), "of kind 'other'"),
        (container({"kind": "k", "meta": {}}), "None is not a column"),
        (container(header(["x", "u8", 2**60])), "does not fit"),
        (container(header(["x", "u1", 2**100])), "does not fit"),
        (container(header(["x", "u1", -1])), "is not a column"),
        (container(header(["x", "u1", True]), bytes(8)), "is not a column"),
        (container(header(["x", "O", 1]), bytes(8)), "is not a column"),
        (container(header(["x", "u1"])), "is not a column"),
        (container(header(["x", "u1", 1], ["x", "u1", 1]), bytes(16)), "twice"),
        (container(header(), bytes(8)), "8 bytes after its columns"),
        (container({"kind": "k", "columns": []}), "no facts"),
    ],
)
def test_hostile_containers_are_refused(content: bytes, problem: str) -> None:
    with pytest.raises(IndexFileError, match=problem):
        unpack(content, "k", "here")


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(content: bytes) -> None:
    for sample in (content, sealed(content), container(content)):
        with pytest.raises(IndexFileError):
            unpack(sample, "k", "here")


def test_only_columns_can_be_packed() -> None:
    for wrong in (np.zeros(2, "f4"), np.zeros((2, 2), "u1"), np.array(["x"])):
        with pytest.raises(TypeError, match="unsupported column"):
            pack("k", {}, {"x": wrong})


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_narrow_keeps_the_numbers(numbers: list[int]) -> None:
    column = narrow(numbers)
    assert column.tolist() == numbers
    most = max(numbers, default=0)
    assert column.dtype.itemsize == next(b for b in (1, 2, 4, 8) if most < 256**b)
