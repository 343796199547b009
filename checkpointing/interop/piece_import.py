"""A new checkpoint of pieces that come one by one, so that never all of them are in memory."""

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

GROUP = 128 << 20  # bytes of pieces that are in memory at a time, besides what a writer needs


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
        pieces: made when they are asked for; one at a time has to fit into memory.
        source: what they are from, see `source_of`: tells two imports of one step apart.
        on_bytes: told how many raw bytes have been written.

    Raises:
        SaveError: not committed; the pieces do not fill their tensors, for example.
        StoreError: the store is out of reach.
        ValueError: `run` or `step` cannot be one.
    """
    if not 0 <= step <= MAX_STEP:
        raise ValueError(f"a step is a whole number from 0 to {MAX_STEP}, got {step!r}")
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
    """What an import says of where it is from: "/data/exported (safetensors)"."""
    return f"{str(path.absolute()).encode(errors='backslashreplace').decode()} ({format_})"


def write_groups(
    store: Store,
    save: SaveId,
    pieces: Iterable[TensorPiece],
    values: Mapping[str, Json],
    index: ChunkIndex,
    on_bytes: Callable[[int], None] | None = None,
) -> WrittenPart:
    """As `checkpointing.store.write.part_writer.write`, but a group of pieces at a time; adds what
    it writes
    to `index`."""
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
    """Pieces in groups of about `size` bytes; a larger one is a group of its own."""
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
    """What several writes have written, as if it had been one."""

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
