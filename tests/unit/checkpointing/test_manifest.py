import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing import CheckpointError, DamagedError, FormatError
from checkpointing.canonical import dump
from checkpointing.manifest import Chunk, Header, Manifest, assemble, from_json, to_json

HEADER = Header(
    id="0000000005-0123abcd",
    run="r",
    step=5,
    created=12.5,
    world_size=2,
    metrics={"loss": float("inf")},
    values={"opt/lr": 0.1, "x": {"$tuple": [1, None]}},
)


def chunk(rank: int, offset: int = 0, **other: Any) -> Chunk:
    fields: dict[str, Any] = {
        "fqn": "model/w",
        "dtype": "float32",
        "shape": (4, 3),
        "offsets": (2 * rank, 0),
        "sizes": (2, 3),
        "file": f"rank-{rank:05d}.bin",
        "offset": offset,
        "length": 24,
        "blake3": "00" * 32,
    }
    return Chunk(**(fields | other))


SCALAR = chunk(1, 24, fqn="step", shape=(), offsets=(), sizes=(), length=4)


def whole() -> Manifest:
    return assemble(HEADER, [chunk(1), SCALAR, chunk(0)])


def test_round_trip() -> None:
    manifest = whole()
    read = from_json(to_json(manifest))
    assert (read.header, read.files) == (manifest.header, manifest.files)
    assert set(read.chunks) == set(manifest.chunks)
    assert manifest.files == {"rank-00000.bin": 24, "rank-00001.bin": 28}
    assert read.bytes == 52
    assert read.tensors() == {"model/w": ((4, 3), "float32"), "step": ((), "float32")}
    assert to_json(read) == to_json(manifest)


def resealed(change: Any) -> bytes:
    """A manifest that was changed and given a hash that fits."""
    body = json.loads(to_json(whole()))
    del body["blake3"]
    change(body)
    return dump(body)


def test_unknown_versions_and_features_are_refused() -> None:
    with pytest.raises(FormatError, match="version 2 is not known"):
        from_json(resealed(lambda b: b.update(version=2)))
    with pytest.raises(FormatError, match="features that are not known here: packs, tiles"):
        from_json(resealed(lambda b: b.update(features=["tiles", "packs"])))


@given(st.data())
def test_any_flipped_bit_or_cut_is_noticed(data: st.DataObject) -> None:
    text = bytearray(to_json(whole()))
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CheckpointError):
        from_json(bytes(text))
    with pytest.raises(DamagedError):
        from_json(to_json(whole())[:place])


PATHS = [
    ("tensors", "model/w", "chunks", 0, "file"),
    ("tensors", "model/w", "chunks", 0, "offset"),
    ("tensors", "model/w", "chunks", 0, "sizes"),
    ("tensors", "model/w", "chunks"),
    ("tensors", "model/w", "shape"),
    ("tensors", "model/w"),
    ("files", "rank-00000.bin"),
    ("files",),
    ("metrics", "loss"),
    ("values",),
    ("step",),
    ("id",),
    ("created",),
    ("features",),
]


WRONG = [None, -1, "../../etc/passwd", [1.5], {"a": 1}, True, 10**6]


def is_possible(path: tuple[Any, ...], value: Any) -> bool:
    """Whether the field could hold this value."""
    if path in [("created",), ("metrics", "loss")]:
        return type(value) is int
    if path in [("step",), ("files", "rank-00000.bin")]:
        return type(value) is int and value >= 0
    return (path == ("id",) and type(value) is str) or (path == ("values",) and value == {"a": 1})


@pytest.mark.parametrize(
    ("path", "value"), [(p, v) for p in PATHS for v in WRONG if not is_possible(p, v)]
)
def test_what_is_not_what_it_should_be_is_refused(path: tuple[Any, ...], value: Any) -> None:
    def change(body: dict[str, Any]) -> None:
        *parents, last = path
        for key in parents:
            body = body[key]
        body[last] = value

    with pytest.raises(CheckpointError):
        from_json(resealed(change))


def test_holes_are_refused() -> None:
    with pytest.raises(DamagedError, match="do not fill its shape"):
        from_json(to_json(assemble(HEADER, [chunk(0)])))
    with pytest.raises(DamagedError, match="impossible chunk"):
        from_json(to_json(assemble(HEADER, [chunk(0), chunk(1, offsets=(3, 0))])))


def test_nothing_but_json_objects() -> None:
    for data in (b"", b"[]", b"null", b"\x80\x04.", b"[" * 100_000, b'{"a": NaN}'):
        with pytest.raises(CheckpointError):
            from_json(data)
