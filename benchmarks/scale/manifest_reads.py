"""What the manifest costs each rank of a restore: requests, bytes, processor time and memory.

    python -m benchmarks.scale.manifest_reads [--chunks 100000 300000 1000000] [--ranks 8]

A manifest of so many chunks is made by the code that writes manifests, from 16 pipeline stages with
tensors of their own. The ranks of one node, which are processes with a process group, then look up
the chunks of their own slice of the tensors of one stage. "each rank" has every rank read the whole
manifest, in one table for each item, as before tables were cut into groups of tensors; "per node"
is what a restore does. Memory is the increase of the private memory of a rank, while it has what it
read; memory that the ranks of a node share is not part of it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from rich.console import Console
from rich.table import Table as Shown

from benchmarks.common.number_arguments import positive_int
from checkpointing.format import item_table
from checkpointing.format.chunk_columns import NAMES, ROW, ChunkColumns, ChunksByBox, ColumnSegment
from checkpointing.format.item_table import ItemTable, TensorSpec
from checkpointing.format.manifest import ManifestContent, ManifestHeader, build_manifest
from checkpointing.format.object_keys import SaveId
from checkpointing.format.tiles import Box
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore.node_manifest import ManifestReading, NodeManifest
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.store import Store

SAVE = SaveId("run", 1, "aaaaaaaa")
STAGES, TENSORS, ITEMS = 16, 24, ("model", "optimizer")  # tensors of each stage and item
SIDE = 128  # elements of a chunk in each dimension
WIDE = 8  # chunks across


@dataclass(frozen=True)
class ManifestReadCost:
    """What the manifest took one rank."""

    reading: ManifestReading
    seconds: float  # of processor time
    memory: int  # bytes
    chunks: int  # that the rank needs


def saved(root: Path, chunks: int) -> int:
    """Write a checkpoint's manifest of about so many chunks; returns its bytes."""
    rows = max(1, chunks // (STAGES * TENSORS * len(ITEMS) * WIDE))
    names = [os.urandom(12) + bytes.fromhex(SAVE.session) for _ in range(256)]
    packs = dict.fromkeys(sorted(names), 48 << 20)
    items = {item: _table(item, rows, list(packs)) for item in ITEMS}
    data = build_manifest(ManifestContent(ManifestHeader(SAVE, 0.0, STAGES), items, packs))
    store = Store.open(root, create=True)
    store.storage.create(SAVE.manifest(), data)
    store.close()
    return len(data)


def _table(item: str, rows: int, packs: list[bytes]) -> ItemTable:
    table, count = ItemTable(), rows * WIDE
    random = np.random.default_rng(1)
    spec = TensorSpec("float32", (rows * SIDE, WIDE * SIDE), (SIDE, SIDE))
    at = np.stack(np.meshgrid(np.arange(rows), np.arange(WIDE), indexing="ij"), -1).reshape(-1, 2)
    boxes = np.stack([at * SIDE, np.full_like(at, SIDE)], axis=1)
    size = 4 * SIDE * SIDE
    for number in range(STAGES * TENSORS):
        columns: dict[str, Any] = {name: np.zeros(count, ROW[name].base) for name in NAMES}
        columns["id"] = random.integers(0, 256, (count, 32), np.uint8)
        columns["checksum"] = random.integers(0, 1 << 63, count, np.uint64)
        columns["pack"][:] = number % len(packs)
        columns["offset"][:] = 8 + size * np.arange(count)
        columns["length"][:] = columns["raw_length"][:] = size
        columns["base"][:] = -1
        segment = ColumnSegment(boxes, ChunkColumns(columns, packs), 0)
        name = f"{item}/{number // TENSORS}.{number % TENSORS}"
        table.describe(name, spec)
        table.chunks[name] = ChunksByBox([segment])
    return table


def cost(rank: int, ranks: int, root: Path, is_shared: bool) -> ManifestReadCost:
    """Returns what the manifest takes a rank of a node."""
    group = RankGroup()
    store = Store.open(root)
    (stored,) = store.manifests("run")
    mine = [f"{item}/3.{number}" for item in ITEMS for number in range(TENSORS)]
    group.all_gather(0, group.control)
    memory, begun_s = _private(), time.process_time()
    manifest = NodeManifest(store, group, range(ranks) if is_shared else [rank])
    checkpoint = manifest.share(stored)
    specs = checkpoint.tensors()
    manifest.share_groups(checkpoint, mine)
    found = sum(_slice_chunks(checkpoint, name, specs[name], rank, ranks) for name in mine)
    seconds, memory = time.process_time() - begun_s, _private() - memory
    reading = manifest.reading(checkpoint)
    group.all_gather(0, group.control)
    group.close()
    return ManifestReadCost(reading, seconds, memory, found)


def _slice_chunks(
    checkpoint: Checkpoint, name: str, spec: TensorSpec, rank: int, ranks: int
) -> int:
    """Returns the number of chunks of a rank's rows."""
    first, end = (spec.shape[0] * one // ranks for one in (rank, rank + 1))
    box = Box((first, 0), (end - first, spec.shape[1]))
    return sum(1 for _ in checkpoint.table_with(name).reaching(name, box))


def _private() -> int:
    """Returns the bytes of memory that only this process has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _rank(rank: int, ranks: int, root: Path, is_shared: bool, answers: Any) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{root}-{is_shared}", rank=rank, world_size=ranks
    )
    answers.put(cost(rank, ranks, root, is_shared))
    dist.barrier()
    dist.destroy_process_group()


def on_node(ranks: int, root: Path, is_shared: bool) -> list[ManifestReadCost]:
    """Returns the costs of all ranks of a node."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    started = [
        context.Process(target=_rank, args=(rank, ranks, root, is_shared, answers))
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    found = [answers.get(timeout=500) for _ in started]
    for process in started:
        process.join()
    return found


def measured(chunks: int, ranks: int, is_shared: bool) -> tuple[int, list[ManifestReadCost]]:
    """Returns the bytes of a manifest and what it costs each rank of a node."""
    with tempfile.TemporaryDirectory() as folder:
        root, limit = Path(folder) / "store", item_table.GROUPED
        item_table.GROUPED = limit if is_shared else 1 << 62
        try:
            size = saved(root, chunks)
        finally:
            item_table.GROUPED = limit
        return size, on_node(ranks, root, is_shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--chunks", type=positive_int, nargs="+", default=[100_000, 300_000, 1_000_000]
    )
    parser.add_argument("--ranks", type=positive_int, default=8, help="of the node")
    asked = parser.parse_args()
    head = ("chunks", "manifest", "", "requests", "bytes of a node", "CPU s: most", "mean", "MB")
    shown = Shown(*head)
    for chunks in asked.chunks:
        for is_shared in (False, True):
            size, found = measured(chunks, asked.ranks, is_shared)
            seconds = [one.seconds for one in found]
            shown.add_row(
                f"{chunks:,}",
                f"{size / 1e6:.1f} MB",
                "per node" if is_shared else "each rank",
                f"{sum(one.reading.requests for one in found)}",
                f"{sum(one.reading.bytes for one in found) / 1e6:.1f} MB",
                f"{max(seconds):.2f}",
                f"{sum(seconds) / len(found):.2f}",
                f"{sum(one.memory for one in found) / len(found) / 1e6:.0f}",
            )
    Console(width=110).print(shown)


if __name__ == "__main__":
    main()
