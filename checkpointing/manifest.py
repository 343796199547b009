"""The manifest of a checkpoint and the part records it is made of, as dataclasses and as JSON.

What is read from disk is checked field by field before anything uses it; unknown versions and
features are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from checkpointing.canonical import Reader, dump, load
from checkpointing.errors import DamagedError, FormatError
from checkpointing.layout import is_bin_name
from checkpointing.values import Json, decode, encode

FORMAT = "hpckit-checkpoint"
VERSION = 1
FEATURES: frozenset[str] = frozenset()  # optional features this version can read: none yet


@dataclass(frozen=True)
class Chunk:
    """A box of one tensor, as contiguous raw bytes (row-major, native element layout) in a file."""

    fqn: str
    dtype: str  # torch's name: "float32", "bfloat16", ...
    shape: tuple[int, ...]  # of the whole tensor
    offsets: tuple[int, ...]  # where the box starts in it
    sizes: tuple[int, ...]  # extent of the box
    file: str
    offset: int  # bytes
    length: int  # bytes
    blake3: str  # 64 hex digits, of the raw bytes


@dataclass(frozen=True)
class Header:
    """What the manifest says besides tensors."""

    id: str  # "<step>-<session>", the name of the checkpoint's directory
    run: str
    step: int
    created: float  # Unix time of save(), seconds
    world_size: int
    metrics: dict[str, float]
    values: dict[str, Json]  # "name/sub/key" -> encoded value


@dataclass(frozen=True)
class Manifest:
    """A whole checkpoint: its existence on disk is the commit."""

    header: Header
    chunks: tuple[Chunk, ...]
    files: dict[str, int]  # name -> bytes

    @property
    def bytes(self) -> int:
        return sum(self.files.values())

    def tensors(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """fqn -> (global shape, dtype name)."""
        return {chunk.fqn: (chunk.shape, chunk.dtype) for chunk in self.chunks}


def assemble(header: Header, chunks: Iterable[Chunk]) -> Manifest:
    """The manifest over all ranks' chunks, which fill their files end to end."""
    ordered = tuple(sorted(chunks, key=lambda c: (c.file, c.offset, c.fqn)))
    files: dict[str, int] = {}
    for chunk in ordered:
        files[chunk.file] = max(files.get(chunk.file, 0), chunk.offset + chunk.length)
    return Manifest(header, ordered, files)


def part_to_json(id_: str, rank: int, chunks: Iterable[Chunk]) -> bytes:
    """The record of what one rank wrote."""
    items = [asdict(chunk) for chunk in chunks]
    return dump({**_envelope(), "id": id_, "rank": rank, "chunks": items})


def to_json(manifest: Manifest) -> bytes:
    """Canonical JSON, with a hash over itself."""
    header = manifest.header
    tensors: dict[str, dict[str, object]] = {}
    for c in manifest.chunks:
        entry = tensors.setdefault(c.fqn, {"dtype": c.dtype, "shape": c.shape, "chunks": []})
        chunks = entry["chunks"]
        assert isinstance(chunks, list)
        place = {"file": c.file, "offset": c.offset, "length": c.length, "blake3": c.blake3}
        chunks.append({"offsets": c.offsets, "sizes": c.sizes, **place})
    body = {
        **_envelope(),
        "id": header.id,
        "run": header.run,
        "step": header.step,
        "created": header.created,
        "world_size": header.world_size,
        "metrics": encode(header.metrics, "metrics"),
        "values": header.values,
        "tensors": tensors,
        "files": manifest.files,
        "bytes": manifest.bytes,
    }
    return dump(body)


def _envelope() -> dict[str, object]:
    return {"format": FORMAT, "version": VERSION, "features": []}


def from_json(data: bytes) -> Manifest:
    """Read back what `to_json` wrote.

    Raises:
        DamagedError: not whole, altered, or not consistent in itself.
        FormatError: of a version or with a feature that is not known here.
    """
    body, is_intact = load(data)
    top = Reader(body, "manifest")
    if top.text("format") != FORMAT:
        raise DamagedError(f"manifest: field 'format' is {top.text('format')!r}, not {FORMAT!r}")
    # before the hash, which another version may compute in another way
    if top.count("version") != VERSION:
        raise FormatError(
            f"format version {top.count('version')} is not known here (this is version {VERSION}): "
            "use the version of hpckit that wrote it, or a newer one"
        )
    if not is_intact:
        raise DamagedError("manifest: its hash does not match its content")
    if unknown := sorted(set(top.texts("features")) - FEATURES):
        raise FormatError(f"needs features that are not known here: {', '.join(unknown)}")
    header = Header(
        id=top.text("id"),
        run=top.text("run"),
        step=top.count("step"),
        created=top.number("created"),
        world_size=top.count("world_size"),
        metrics={name: _metric(name, value) for name, value in top.object("metrics").items()},
        values=top.object("values"),
    )
    files = {name: top.child("files").count(name) for name in top.object("files")}
    tensors = top.child("tensors")
    chunks = [c for fqn in top.object("tensors") for c in _chunks(fqn, tensors.child(fqn), files)]
    return Manifest(header, tuple(chunks), files)


def _metric(name: str, value: Json) -> float:
    number = decode(value)
    if type(number) not in (float, int):
        raise DamagedError(f"manifest: metric {name!r} is no number")
    return float(number)


def _chunks(fqn: str, tensor: Reader, files: dict[str, int]) -> list[Chunk]:
    """The chunks of one tensor, which lie inside it and inside their files, and fill it."""
    dtype, shape = tensor.text("dtype"), tensor.counts("shape")
    chunks = [
        Chunk(
            fqn=fqn,
            dtype=dtype,
            shape=shape,
            offsets=item.counts("offsets"),
            sizes=item.counts("sizes"),
            file=item.text("file"),
            offset=item.count("offset"),
            length=item.count("length"),
            blake3=item.text("blake3"),
        )
        for item in tensor.children("chunks")
    ]
    for chunk in chunks:
        if not _inside(chunk, files):
            raise DamagedError(f"manifest: impossible chunk of {fqn!r}: {chunk}")
    if sum(math.prod(c.sizes) for c in chunks) != math.prod(shape):
        raise DamagedError(f"manifest: the chunks of {fqn!r} do not fill its shape {shape}")
    return chunks


def _inside(chunk: Chunk, files: dict[str, int]) -> bool:
    return (
        is_bin_name(chunk.file)
        and chunk.offset + chunk.length <= files.get(chunk.file, -1)
        and len(chunk.offsets) == len(chunk.sizes) == len(chunk.shape)
        and all(o + n <= s for o, n, s in zip(chunk.offsets, chunk.sizes, chunk.shape, strict=True))
    )
