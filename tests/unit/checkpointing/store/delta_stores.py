"""Stores on disk with deltas, duplicates and damage, for the tests of repair, flatten, compact."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from checkpointing.codec import Codec, WordLayout, encode
from checkpointing.format.chunks import Chunk
from checkpointing.format.element_types import ElementType
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId, pack_key
from checkpointing.storage import Buffer
from checkpointing.store import catalog
from checkpointing.store.catalog import CatalogEntry
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.inspection.integrity_check import IntegrityProblem, verify
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_encoding import ChunkEncoder, EncodedChunk
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write

ROWS, COLUMNS = 64, 48
Tensors = Mapping[str, NDArray[np.float32]]


class EncodesAtOnce:
    """An encoder that is asked about every chunk."""

    def expects_raw(self, budget: object) -> bool:
        return False


class Deltas(EncodesAtOnce):
    """Encodes every chunk relative to the one before it, if there is one."""

    def reads(self, name: str, dtype: str, before: Chunk) -> Chunk:
        return before

    def encode(
        self,
        raw: Buffer,
        element: ElementType,
        before: Chunk | None,
        read: Callable[[Chunk], Buffer],
        **_: object,
    ) -> EncodedChunk:
        layout = WordLayout(element.word, element.is_float, element.itemsize)
        if before is None:
            return EncodedChunk(bytes(raw), Codec.RAW)
        return EncodedChunk(encode(Codec.DELTA, raw, layout, read(before)), Codec.DELTA, before)


class Raws(EncodesAtOnce):
    """Encodes nothing."""

    def encode(self, raw: Buffer, **_: object) -> EncodedChunk:
        return EncodedChunk(bytes(raw), Codec.RAW)


class Planes(EncodesAtOnce):
    """Encodes every chunk for itself."""

    def encode(self, raw: Buffer, element: ElementType, **_: object) -> EncodedChunk:
        layout = WordLayout(element.word, element.is_float, element.itemsize)
        return EncodedChunk(encode(Codec.PLANES, raw, layout), Codec.PLANES)


def options(encoder: object, pack_bytes: int = 1 << 20) -> WriteOptions:
    return WriteOptions(pack_bytes=pack_bytes, threads=1, encoder=cast(ChunkEncoder, encoder))


DELTAS, PLAIN, PLANES = options(Deltas()), options(Raws()), options(Planes())


def tensor(seed: int, rows: int = ROWS) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, COLUMNS)).astype(np.float32)


def begin_save(
    session: Session, step: int, tensors: Tensors, chosen: WriteOptions, *, ranks: int = 1
) -> SaveId:
    """A save up to its commit."""
    store, made = session.store, session.begin(step)
    pieces = [TensorPiece(n, "float32", a.shape, (0,) * a.ndim, a) for n, a in tensors.items()]
    index = RunChunkIndex(store, session.run).index()
    written = write(store, made, pieces, {"model/step": step}, index, chosen)
    write_part(store, ManifestHeader(made, float(step), ranks), 0, written)
    return made


def save(
    store: Store, run: str, step: int, tensors: Tensors, chosen: WriteOptions = PLAIN
) -> SaveId:
    with Session(store, run) as session:
        made = begin_save(session, step, tensors, chosen)
        commit(store, made, 1, check=session.check)
        session.end(made.manifest())
    return made


def mirror(store: Store, folder: Path, to: Path) -> Store:
    shutil.copytree(folder, to)
    return Store.open(to)


def find(store: Store, save_: SaveId) -> CatalogEntry:
    return next(f for f in catalog.committed(store, save_.run)[0] if f.stored.save == save_)


def problems(folder: Path) -> list[IntegrityProblem]:
    """What is wrong with any checkpoint in a folder, as somebody sees it who opens it anew."""
    store = Store.open(folder)
    found, unreadable = catalog.committed(store)
    broken = [IntegrityProblem(s.step, s.id, "", text) for s, text in unreadable.items()]
    return broken + [problem for f in found for problem in verify(store, f)]


def read(folder: Path, save_: SaveId) -> dict[str, NDArray[Any]]:
    """All tensors of a checkpoint."""
    store = Store.open(folder)
    checkpoint = Checkpoint(store, find(store, save_).stored)
    return {n: checkpoint.read(n).view(np.float32) for n in checkpoint.tensors()}


def holds(folder: Path, save_: SaveId, tensors: Tensors) -> bool:
    """Whether a checkpoint has exactly these tensors, bit for bit."""
    got = read(folder, save_)
    return got.keys() == tensors.keys() and all(
        got[n].tobytes() == tensors[n].tobytes() and got[n].shape == tensors[n].shape for n in got
    )


def chunks(store: Store, save_: SaveId) -> list[Chunk]:
    """All chunks of a checkpoint, bases too."""
    document = find(store, save_).document
    return [c for item in document.items for c in document.table(item).all_chunks()]


def packs(store: Store, save_: SaveId) -> list[str]:
    return [pack_key(pack) for pack in find(store, save_).document.packs()]


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
