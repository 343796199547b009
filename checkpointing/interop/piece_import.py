"""Saves a new checkpoint from pieces that come one by one, so that they are never all in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from checkpointing.format.item_table import ItemTable
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import MAX_STEP, SaveId
from checkpointing.format.values.json_values import Json
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import ChunkIndex, RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, WrittenPart, write

GROUP = 128 << 20  # bytes of pieces in memory at a time, besides what a writer needs


def save_pieces(
    store: Store,
    run: str,
    step: int,
    pieces: Iterable[TensorPiece],
    values: Mapping[str, Json],
    on_bytes: Callable[[int], None] | None = None,
    source: str = "",
) -> SaveId:
    """Commit a checkpoint of these pieces and values, by full name.

    Args:
        pieces: an iterable that creates each piece on demand; one at a time must fit into memory.
        source: the origin of the pieces, see `source_of`; it distinguishes two imports of one step.
        on_bytes: called with the number of raw bytes written.

    Raises:
        SaveError: the checkpoint was not committed, for example because the pieces do not cover
            their tensors.
        StoreError: the store is unreachable.
        ValueError: `run` or `step` is invalid.
    """
    if not 0 <= step <= MAX_STEP:
        raise ValueError(f"a step must be a whole number from 0 to {MAX_STEP}, got {step!r}")
    with Session(store, run) as session:
        save = session.begin(step)
        try:
            header = ManifestHeader(save, time.time(), world_size=1, source=source)
            index = RunChunkIndex(store, run).index()
            written = write_groups(store, save, pieces, values, index, on_bytes)
            write_part(store, header, 0, written)
            commit(store, save, 1, check=session.check)
        finally:
            session.end(save.manifest())
    return save


def source_of(path: Path, format_: str) -> str:
    """Describes the origin of an import: "/data/exported (safetensors)"."""
    return f"{str(path.absolute()).encode(errors='backslashreplace').decode()} ({format_})"


def write_groups(
    store: Store,
    save: SaveId,
    pieces: Iterable[TensorPiece],
    values: Mapping[str, Json],
    index: ChunkIndex,
    on_bytes: Callable[[int], None] | None = None,
) -> WrittenPart:
    """As `checkpointing.store.write.part_writer.write`, but writes one group of pieces at a time
    and adds its chunks to `index`."""
    total, options = _Total(), WriteOptions()
    total.add(write(store, save, [], values, index, options))
    for group in groups(pieces):
        written = write(store, save, group, {}, index, options)
        index.add(written.tables.values(), written.packs)
        total.add(written)
        if on_bytes:
            on_bytes(written.raw_bytes)
    return WrittenPart(total.tables, total.packs, total.new_bytes, total.raw_bytes)


def groups(pieces: Iterable[TensorPiece], size: int = GROUP) -> Iterator[list[TensorPiece]]:
    """Yields pieces in groups of about `size` bytes; a larger piece is a group of its own."""
    group: list[TensorPiece] = []
    filled = 0
    for piece in pieces:
        if group and filled + piece.data.nbytes > size:
            yield group
            group, filled = [], 0
        group.append(piece)
        filled += piece.data.nbytes
    if group:
        yield group


@dataclass
class _Total:
    """Adds up the results of several writes."""

    tables: dict[str, ItemTable] = field(default_factory=dict)
    packs: dict[bytes, int] = field(default_factory=dict)
    new_bytes: int = 0
    raw_bytes: int = 0

    def add(self, written: WrittenPart) -> None:
        for item, table in written.tables.items():
            mine = self.tables.setdefault(item, ItemTable())
            for name, spec in table.tensors.items():
                mine.place(name, spec, table.chunks[name])
            mine.values.update(table.values)
        self.packs.update(written.packs)
        self.new_bytes += written.new_bytes
        self.raw_bytes += written.raw_bytes
