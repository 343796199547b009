"""Shards of MDS and LitData, written from the descriptions of their layouts, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def table(records: Sequence[bytes], header: bytes = b"") -> bytes:
    """The number of records, their offsets in the file, a header, and the records."""
    first = 4 * (len(records) + 2) + len(header)
    offsets = np.cumsum([first, *map(len, records)]).astype("<u4")
    return np.uint32(len(records)).tobytes() + offsets.tobytes() + header + b"".join(records)


def dynamic(array: np.ndarray[Any, Any], dtype: int) -> bytes:
    """An array of MDS with its dtype and a shape of uint8 before it."""
    return bytes([dtype, array.ndim << 2, *array.shape]) + array.tobytes()


def byte_list(images: Sequence[bytes]) -> bytes:
    """The number of images, their sizes, and the images."""
    return np.array([len(images), *map(len, images)], "<u4").tobytes() + b"".join(images)


def images_of(i: int) -> list[bytes]:
    return [b"\xff\xd8" * n for n in range(i % 4)]


MDS: dict[str, tuple[str, int | None, Callable[[int], Any], Callable[[Any], bytes]]] = {
    "text": ("str", None, lambda i: f"text é {i}", str.encode),
    "label": ("int", 8, lambda i: i - 2, lambda v: np.int64(v).tobytes()),
    "image": ("jpeg:90", None, lambda i: b"\xff\xd8" * i, bytes),
    "small": ("uint16", 2, lambda i: i, lambda v: np.uint16(v).tobytes()),
    "real": ("float32", 4, lambda i: i / 2, lambda v: np.float32(v).tobytes()),
    "meta": ("json", None, lambda i: {"n": [i, None]}, lambda v: json.dumps(v).encode()),
    "fixed": (
        "ndarray:int32:2,2",
        16,
        lambda i: np.full((2, 2), i, np.int32),
        lambda v: bytes(v.tobytes()),
    ),
    "shaped": (
        "ndarray:uint8",
        None,
        lambda i: np.full((1, i + 1), i, np.uint8),
        lambda v: bytes([v.ndim << 2, *v.shape]) + v.tobytes(),
    ),
    "free": (
        "ndarray",
        None,
        lambda i: np.arange(i + 1, dtype=np.float64),
        lambda v: dynamic(v, 66),
    ),
    "frames": ("jpeg_array", None, images_of, byte_list),
    "pages": ("list[png]", None, images_of, lambda v: bytes(4) + byte_list(v)),
    "digits": ("str_int", None, lambda i: 10**20 + i, lambda v: str(v).encode()),
}


def mds_record(i: int) -> bytes:
    parts = [write(make(i)) for _, _, make, write in MDS.values()]
    sizes = [size for _, size, _, _ in MDS.values()]
    heads = [len(p) for p, s in zip(parts, sizes, strict=True) if s is None]
    return np.array(heads, "<u4").tobytes() + b"".join(parts)


def write_mds(
    folder: Path, count: int, per_shard: int, pack: Callable[[bytes], bytes] | None = None
) -> list[dict[str, Any]]:
    """Write samples 0 .. count - 1; return what they hold. `pack` compresses the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = []
    for number, first in enumerate(range(0, count, per_shard)):
        records = [mds_record(i) for i in range(first, min(count, first + per_shard))]
        content, name = table(records, b'{"column_names": []}'), f"shard.{number:05d}.mds"
        packed = None
        if pack is None:
            (folder / name).write_bytes(content)
        else:
            (folder / f"{name}.zstd").write_bytes(pack(content))
            packed = {"basename": f"{name}.zstd", "bytes": 0, "hashes": {}}
        shards.append(
            {
                "column_names": list(MDS),
                "column_encodings": [encoding for encoding, *_ in MDS.values()],
                "column_sizes": [size for _, size, *_ in MDS.values()],
                "compression": None if pack is None else "zstd",
                "format": "mds",
                "raw_data": {"basename": name, "bytes": len(content), "hashes": {}},
                "samples": len(records),
                "version": 2,
                "zip_data": packed,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return [{name: make(i) for name, (_, _, make, _) in MDS.items()} for i in range(count)]


def nested(i: int) -> dict[str, Any]:
    return {
        "words": ["a", "é" * i],
        "whole": [i, -i],
        "real": [i / 3],
        "flags": [True, i % 2 == 0],
        "records": [{"q": None, "w": f"é{i}", "n": -i, "r": i / 7, "f": False}] * i,
        "other": [1, "a", {"n": [None]}],
        "n": i - 5,
        "r": -i / 3,
        "f": True,
        "none": None,
        "text": "",
    }


def _counted(content: bytes) -> bytes:
    return np.uint32(len(content)).tobytes() + content


def _numbers(values: list[Any], dtype: str) -> bytes:
    return np.uint32(len(values)).tobytes() + np.array(values, dtype).tobytes()


def nested_bytes(value: dict[str, Any]) -> bytes:
    """What `nested` has made, as LitData writes it: a tag before each value."""

    def texts(words: Sequence[str]) -> bytes:
        return np.uint32(len(words)).tobytes() + b"".join(_counted(w.encode()) for w in words)

    records = value["records"]
    rows = b"".join(
        b"\x10\x11"
        + _counted(row["w"].encode())
        + b"\x12"
        + np.int64(row["n"]).tobytes()
        + b"\x13"
        + np.float64(row["r"]).tobytes()
        + b"\x14\0"
        for row in records
    )
    written = {
        "words": b"\1" + texts(value["words"]),
        "whole": b"\2" + _numbers(value["whole"], "<i8"),
        "real": b"\3" + _numbers(value["real"], "<f8"),
        "flags": b"\4" + _numbers(value["flags"], "?"),
        "records": b"\6"
        + np.uint32(len(records)).tobytes()
        + texts(["q", "w", "n", "r", "f"])
        + rows,
        "other": b"\0" + _counted(json.dumps(value["other"]).encode()),
        "n": b"\x08" + np.int64(value["n"]).tobytes(),
        "r": b"\x09" + np.float64(value["r"]).tobytes(),
        "f": b"\x0a\1",
        "none": b"\x0b",
        "text": b"\7" + _counted(b""),
    }
    pairs = [_counted(key.encode()) + content for key, content in written.items()]
    return b"\5" + np.uint32(len(pairs)).tobytes() + b"".join(pairs)


LITDATA: dict[str, tuple[str, Callable[[int], Any], Callable[[Any], bytes]]] = {
    "text": ("str", lambda i: f"text é {i}", str.encode),
    "label": ("int", lambda i: -i, lambda v: np.int64(v).tobytes()),
    "real": ("float", lambda i: i / 3, lambda v: np.float64(v).tobytes()),
    "flag": ("bool", lambda i: i % 2 == 0, lambda v: np.bool_(v).tobytes()),
    "image": ("jpeg", lambda i: b"\xff\xd8" * i, bytes),
    "row": (
        "no_header_numpy:9",
        lambda i: np.arange(i, dtype=np.float32),
        lambda v: bytes(v.tobytes()),
    ),
    "matrix": (
        "tensor",
        lambda i: np.full((2, i + 1), i, np.int64),
        lambda v: np.array([17, v.ndim, *v.shape], "<u4").tobytes() + v.tobytes(),
    ),
    "newer matrix": (  # whose header is big-endian
        "tensor",
        lambda i: np.full((2, i + 1), i, np.float32),
        lambda v: np.array([1, v.ndim, *v.shape], ">u4").tobytes() + v.tobytes(),
    ),
    "nested": ("json", nested, nested_bytes),
    "older nested": ("json", lambda i: {"n": [i]}, lambda v: json.dumps(v).encode()),
    "picture": ("image:png", lambda i: b"\x89P" * i, bytes),
    "words": ("text", lambda i: f"é{i}", str.encode),
    "frames": ("jpeg_array", images_of, byte_list),
    "newer scalar": (
        "tensor",
        lambda i: np.array(i, np.uint16),
        lambda v: np.array([20, 0], ">u4").tobytes() + v.tobytes(),
    ),
}


def write_litdata(
    folder: Path, count: int, per_chunk: int, pack: Callable[[bytes], bytes] | None = None
) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    chunks = []
    for number, first in enumerate(range(0, count, per_chunk)):
        records = []
        for i in range(first, min(count, first + per_chunk)):
            parts = [write(make(i)) for _, make, write in LITDATA.values()]
            records.append(np.array([len(p) for p in parts], "<u4").tobytes() + b"".join(parts))
        name, content = f"chunk-0-{number}.bin", table(records)
        (folder / name).write_bytes(content if pack is None else pack(content))
        size = len(content) if number else sum(map(len, records))  # as newer and older versions
        chunks.append(
            {"chunk_bytes": size, "chunk_size": len(records), "dim": None, "filename": name}
        )
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    spec = {
        "type": "builtins.dict",
        "context": json.dumps(list(LITDATA)),
        "children_spec": [leaf] * len(LITDATA),
    }
    config = {
        "compression": None if pack is None else "zstd",
        "data_format": [form for form, *_ in LITDATA.values()],
        "data_spec": json.dumps([1, spec]),
    }
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return [{name: make(i) for name, (_, make, _) in LITDATA.items()} for i in range(count)]
