"""What a restore reads from the store where ranks hold replicas: requests and bytes on 8 nodes.

    python -m benchmarks.scale.replica_reads [--nodes 8]

A checkpoint is read by the ranks of so many nodes, eight on each, through the plan and the reads of
a restore: each byte is read by one of the ranks that hold it, which sends it to the others.
"planned" counts what the storage is asked for then; "each rank" counts the same if every rank reads
all that it holds. One rank of each node reads the manifest, whose requests are counted too. The
ranks are calls in one process; `tests/integration/checkpoint/test_ranks.py` restores with real
ones, which exchange what they have read.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as Shown

from benchmarks.common.number_arguments import positive_int
from benchmarks.scale.many_ranks import NODE, PLAIN
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.tiles import Box
from checkpointing.layout.global_plan import GlobalPlan
from checkpointing.layout.tensor_layout import Cut, Mesh, Structure, TensorLayout
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store.checkpoint import BoxRead, Checkpoint
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import ChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, write

# an eighth of the rows is whole tiles, so that a shard reads nothing of its neighbours
SHAPES = {f"model/{number}": (8192, 128) for number in range(8)}


def structures(ranks: int, shards: int) -> list[Structure]:
    """Returns the structures of all ranks, of which each `shards` hold a replica."""
    mesh = Mesh.of((ranks // shards, shards), range(ranks))
    cuts = (Cut(1, 0, shards),) if shards > 1 else ()
    at = 0 if cuts else None
    layouts = {name: TensorLayout("float32", shape, cuts, at) for name, shape in SHAPES.items()}
    return [Structure.of(layouts, [mesh] if cuts else [], ())] * ranks


def saved(root: Path) -> int:
    """Save a checkpoint; returns its bytes."""
    random = np.random.default_rng(1)
    pieces = [
        TensorPiece(name, "float32", shape, (0, 0), random.random(shape, np.float32))
        for name, shape in SHAPES.items()
    ]
    store = Store.open(root, create=True)
    with Session(store, "run") as session:
        save = session.begin(1)
        written = write(store, save, pieces, {}, ChunkIndex(), PLAIN)
        write_part(store, ManifestHeader(save, 0.0, 1), 0, written)
        commit(store, save, 1, check=session.check)
        session.end(save.manifest())
    store.close()
    return sum(piece.data.nbytes for piece in pieces)


def planned(alike: Sequence[Structure], rank: int, plan: GlobalPlan) -> list[tuple[str, Box]]:
    """Returns what a rank reads in a restore."""
    return [
        (name, part.box)
        for group in plan.read_groups(rank)
        for name, parts in group.reads[group.ranks.index(rank)].items()
        for part in parts
    ]


def held(alike: Sequence[Structure], rank: int, plan: GlobalPlan) -> list[tuple[str, Box]]:
    """Returns what a rank holds."""
    layouts: Mapping[str, TensorLayout] = alike[rank].tensors
    return [
        (name, part.box)
        for name, layout in layouts.items()
        for part in layout.cell(rank % layout.grid[0] if layout.cuts else 0).parts
    ]


def counted(root: Path, wanted: Sequence[Sequence[tuple[str, Box]]]) -> tuple[int, int]:
    """Returns the requests and bytes of reading these boxes on all ranks."""
    requests = size = 0
    for first in range(0, len(wanted), NODE):
        store = Store.open(root)
        storage = store.storage
        assert isinstance(storage, PosixStorage)
        (stored,) = store.manifests("run")
        checkpoint = Checkpoint(store, stored)
        before = storage.counters.requests, storage.counters.bytes_in
        checkpoint.tensors()
        for boxes in wanted[first : first + NODE]:
            checkpoint.read_into(
                BoxRead(name, box, np.empty(box.sizes, np.float32)) for name, box in boxes
            )
        requests += storage.counters.requests - before[0]
        size += storage.counters.bytes_in - before[1]
        store.close()
    return requests, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=positive_int, default=8)
    ranks = NODE * parser.parse_args().nodes
    shown = Shown("", "who reads", "requests", "MB read", "/ state")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        state = saved(root)
        for name, shards in {"HSDP, a replica on each node": NODE, "DDP": 1}.items():
            alike = structures(ranks, shards)
            plan = GlobalPlan(alike)
            for who, reads_of in (("each rank", held), ("planned", planned)):
                wanted = [reads_of(alike, rank, plan) for rank in range(ranks)]
                requests, size = counted(root, wanted)
                cells = (f"{requests:,}", f"{size / 1e6:,.1f}", f"{size / state:.2f}")
                shown.add_row(f"{name}, {ranks} ranks", who, *cells)
    Console(width=100).print(shown)


if __name__ == "__main__":
    main()
