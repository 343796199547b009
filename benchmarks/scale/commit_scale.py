"""What a commit costs its leader, by the number of ranks: processor time, memory and requests.

    python -m benchmarks.scale.commit_scale [--ranks 16 160 1600 16384] [--tensors 8]

The part records of all ranks are built by the code that builds them in a save, and committed by the
code that commits a save, in a store in memory that counts requests as S3 does: 1,000 keys for each
listing and each deletion. Groups of 16 ranks share some matrices, of which each rank has a block
of rows in eight chunks: two numbers of matrices show what a record costs besides its chunks. Each
size runs in a process of its own. The last column is the increase of the largest memory of the
process by the commit; the records and the manifest in the store are not part of it.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import resource
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as Shown

from benchmarks.common.fresh_process import in_fresh
from benchmarks.common.number_arguments import int_from, positive_int
from benchmarks.scale.growth_table import slope
from checkpointing.codec import Codec
from checkpointing.format.chunks import Chunk
from checkpointing.format.item_table import ItemTable, TensorSpec
from checkpointing.format.manifest import ManifestContent, ManifestHeader, build_part
from checkpointing.format.object_keys import SaveId, new_pack
from checkpointing.format.tiles import Box, tile_shape, tiles
from checkpointing.storage import ObjectInfo
from checkpointing.storage.forwarding_storage import ForwardingStorage
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.store.store import Store
from checkpointing.store.write.manifest_commit import commit
from hpckit.planner.store_costs import PAGE

SAVE = SaveId("run", 1, "aaaaaaaa")
SHARDS, ROWS, WIDE = 16, 64, 4096


@dataclass(frozen=True)
class CommitCost:
    """What one commit took."""

    ranks: int
    chunks: int
    part_bytes: int  # of all part records
    seconds: float  # of processor time
    lists: int
    gets: int
    deletes: int
    memory: int  # bytes


class RequestCounter(ForwardingStorage):
    """Counts requests as S3 counts them."""

    def __init__(self, storage: MemoryStorage) -> None:
        super().__init__(storage)
        self.lists = self.gets = self.deletes = 0

    def list(self, prefix: str) -> list[ObjectInfo]:
        found = super().list(prefix)
        self.lists += max(1, math.ceil(len(found) / PAGE))
        return found

    def get(self, key: str) -> bytes:
        self.gets += 1
        return super().get(key)

    def delete(self, keys: Iterable[str]) -> None:
        named = list(keys)
        self.deletes += math.ceil(len(named) / PAGE)
        super().delete(named)


def part(rank: int, ranks: int, tensors: int) -> ManifestContent:
    """Returns what a rank has written of so many matrices."""
    table, pack, at = ItemTable(), new_pack(SAVE.session), 8
    shape = (SHARDS * ROWS, WIDE)
    spec = TensorSpec("float32", shape, tile_shape(shape, 4))
    for number in range(tensors):
        placed = {}
        for box in tiles(Box((rank % SHARDS * ROWS, 0), (ROWS, WIDE)), spec.tile):
            size, id_, check = 4 * box.count, secrets.token_bytes(32), random.getrandbits(64)
            placed[box] = Chunk(id_, pack, at, size, size, Codec.RAW, check)
            at += size
        table.place(f"model/{rank // SHARDS}.{number}", spec, placed)
    return ManifestContent(ManifestHeader(SAVE, 0.0, ranks), {"model": table}, {pack: at})


def committed(ranks: int, tensors: int) -> CommitCost:
    """Returns what a commit of so many ranks costs, each of which has so many matrices."""
    storage = RequestCounter(MemoryStorage(f"memory://{secrets.token_hex(4)}"))
    store = Store.at(storage, create=True)
    total = 0
    for rank in range(ranks):
        record = build_part(part(rank, ranks, tensors), rank)
        storage.create(SAVE.part(rank), record)
        total += len(record)
    storage.lists = storage.gets = 0
    gc.collect()
    before, begun_s = _peak(), time.process_time()
    content = commit(store, SAVE, ranks)
    seconds = time.process_time() - begun_s
    chunks = sum(len(placed) for placed in content.items["model"].chunks.values())
    return CommitCost(
        ranks,
        chunks,
        total,
        seconds,
        storage.lists,
        storage.gets,
        storage.deletes,
        _peak() - before,
    )


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    groups = int_from(SHARDS, multiple_of=SHARDS)
    parser.add_argument("--ranks", type=groups, nargs="+", default=[16, 160, 1600, 16384])
    parser.add_argument(
        "--tensors", type=positive_int, default=8, help="of each rank, of eight chunks each"
    )
    asked = parser.parse_args()
    found = [in_fresh(committed, ranks, asked.tensors) for ranks in asked.ranks]
    head = ("ranks", "chunks", "records", "processor", "of a rank", "LIST", "GET", "DELETE", "MB")
    shown = Shown(*head)
    for one in found:
        each_us = f"{1e6 * one.seconds / one.ranks:,.0f} µs"
        counts = (one.lists, one.gets, one.deletes)
        records, mb = f"{one.part_bytes / 1e6:,.1f} MB", f"{one.memory / 1e6:,.0f}"
        cells = (f"{one.ranks:,}", f"{one.chunks:,}", records, f"{one.seconds:.2f} s", each_us)
        shown.add_row(*cells, *(f"{count:,}" for count in counts), mb)
    Console(width=110).print(shown)
    if len(found) > 1:
        print(f"slope of processor time: {slope((o.ranks, o.seconds) for o in found):.2f}")


if __name__ == "__main__":
    main()
