"""Saves, commits, prunes and restores with 10 to 1,000 ranks, and prints how each step grows.

    python -m benchmarks.scale.many_ranks [--ranks 10 30 100 300 1000] [--wide 128] [--s3]

The ranks are calls in one process and have no service and no process group: each plans, copies its
small part of the state into shared memory, writes packs and a part record, and reads its share back
through the code that a rank and its service use. The state is sharded over all ranks by hybrid
FSDP with two replicas, with a bias that every rank holds. Its matrices are as tall as there are
ranks, and so narrow (`--wide`) that tiles are not cut along their rows: a rank has about as many
chunks in a world of any size. Of wide ones it has more in a large world, since the tiles of a
taller matrix are narrower: with 1,024 columns 1 chunk of each on 30 ranks, and 8 on 1,000. Two
steps are saved and committed, the first is pruned, and the second is restored on nine tenths of the
ranks, eight of them on each node, where one reads the manifest. Times are those of the processor,
since other programs may run on the machine. "of one" is the time of one rank; the other times are
of all ranks together, or of the one process that leads. The slope is the exponent of growth between
the last size and the first of at least 30 ranks; what each rank does for itself has a slope of 1 in
total, and 0 for one rank.
"""

from __future__ import annotations

import argparse
import resource
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.fresh_process import in_fresh
from benchmarks.common.number_arguments import int_from, positive_int
from benchmarks.scale.growth_table import show_growth
from checkpointing.format.manifest import ManifestHeader
from checkpointing.layout.global_plan import GlobalPlan, Parts
from checkpointing.layout.tensor_layout import Cut, Mesh, Structure, TensorLayout
from checkpointing.retention import Last
from checkpointing.staging.arena import Arena
from checkpointing.storage import open_storage
from checkpointing.storage.retry import RequestCounters
from checkpointing.store.checkpoint import BoxRead, Checkpoint
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.chunk_index import ChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write
from tests.services.ministack import ministack

T = TypeVar("T")

THREADS, NODE, REPLICAS = 8, 8, 2
TENSORS, CELLS = 4, 4096  # a shard has twice as many cells of each tensor
PLAIN = WriteOptions(threads=1, encoder=ChunkEncoder(encoder=None))
Array = NDArray[np.float32]


class Costs(dict[str, float]):
    """Seconds of processor time, requests and bytes of each step, by its name."""

    def __init__(self, counters: RequestCounters) -> None:
        super().__init__()
        self._counters = counters

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Measure what runs inside."""
        c = self._counters
        before, begun_s = (c.requests, c.bytes_in), time.process_time()
        yield
        self[step] = time.process_time() - begun_s
        self[f"{step}: requests"] = c.requests - before[0]
        self[f"{step}: bytes"] = c.bytes_in - before[1]


def structures(rows: int, wide: int, ranks: int) -> list[Structure]:
    """Returns the structures of all ranks: matrices in shards, of two replicas, and a bias."""
    shards = ranks // REPLICAS
    mesh = Mesh.of((REPLICAS, shards), range(ranks))
    cut = (Cut(1, 0, shards),)
    layouts = {f"model/{n}": TensorLayout("float32", (rows, wide), cut, 0) for n in range(TENSORS)}
    layouts["model/bias"] = TensorLayout("float32", (wide,))
    return [Structure.of(layouts, [mesh], ())] * ranks


def state(rows: int, wide: int) -> dict[str, Array]:
    """Returns the whole state."""
    random = np.random.default_rng(1)
    found = {f"model/{n}": random.random((rows, wide), np.float32) for n in range(TENSORS)}
    return {**found, "model/bias": random.random(wide, np.float32)}


def on_all(ranks: int, call: Callable[[int], T]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, range(ranks)))


def measured(url: str, options: Mapping[str, Any], ranks: int, wide: int) -> dict[str, float]:
    """Returns the costs of each step with so many ranks."""
    storage = open_storage(url, options=dict(options))
    store = Store.at(storage, create=True)
    costs = Costs(storage.counters)  # type: ignore[attr-defined]
    rows = CELLS * ranks // wide
    whole, all_alike = state(rows, wide), structures(rows, wide, ranks)
    with costs.of("plan of one"):
        GlobalPlan(all_alike).to_save(ranks // 2)
    plan = GlobalPlan(all_alike)
    with costs.of("shares"):
        shares = [plan.to_save(rank) for rank in range(ranks)]
    for step in (1, 2):
        _save(store, costs, whole, shares, step)
    with costs.of("prune"):
        prune(store, "run", [Last(1)], grace_s=0.0)
        prune(store, "run", [Last(1)], grace_s=0.0)  # deletes the packs that the first one marks
    _restore(store, costs, whole, ranks * 9 // 10 // REPLICAS * REPLICAS)
    costs["state, bytes"] = sum(one.nbytes for one in whole.values())
    store.close()
    return dict(costs)


def _save(
    store: Store, costs: Costs, whole: Mapping[str, Array], shares: list[Parts], step: int
) -> None:
    ranks = len(shares)
    session = Session(store, "run")
    save = session.begin(step)
    header = ManifestHeader(save, float(step), ranks)
    with costs.of("stage"):
        staged = on_all(ranks, lambda rank: _staged(whole, shares[rank], step))

    def write_one(rank: int) -> None:
        written = write(store, save, staged[rank], {}, ChunkIndex(), PLAIN)
        write_part(store, header, rank, written)

    with costs.of("write"):
        on_all(ranks, write_one)
    before = _peak()
    with costs.of("commit"):
        commit(store, save, ranks, check=session.check)
    costs["memory of the leader, MB"] = (_peak() - before) / 1e6
    session.end(save.manifest())
    session.close()


def _staged(whole: Mapping[str, Array], parts: Parts, step: int) -> list[TensorPiece]:
    """Copy a rank's part of the state into memory that its service could map."""
    arena = Arena.create(max(1, sum(4 * p.box.count for those in parts.values() for p in those)))
    pieces, at = [], 0
    for name, those in parts.items():
        for part in those:
            size = 4 * part.box.count
            cells = arena.view(at, size).view(np.float32).reshape(part.box.sizes)
            cells[...] = whole[name][part.box.slices] + step
            pieces.append(TensorPiece(name, "float32", whole[name].shape, part.box.offsets, cells))
            at += size
    arena.close()
    return pieces


def _restore(store: Store, costs: Costs, whole: Mapping[str, Array], ranks: int) -> None:
    rows, wide = whole["model/0"].shape
    alike = structures(rows, wide, ranks)
    with costs.of("restore plan of one"):
        GlobalPlan(alike).read_groups(ranks // 2)
    plan = GlobalPlan(alike)
    with costs.of("restore shares"):
        wanted = [
            [
                (name, part.box)
                for group in plan.read_groups(rank)
                for name, parts in group.reads[group.ranks.index(rank)].items()
                for part in parts
            ]
            for rank in range(ranks)
        ]
    (stored,) = store.manifests("run")

    def read_node(node: int) -> list[tuple[str, Any, Array]]:
        store.forget(stored.key)
        checkpoint = Checkpoint(store, stored)
        found = [
            (name, box, np.empty(box.sizes, np.float32))
            for rank in range(NODE * node, min(NODE * (node + 1), ranks))
            for name, box in wanted[rank]
        ]
        checkpoint.read_into([BoxRead(name, box, into) for name, box, into in found])
        return found

    costs["chunks"] = sum(
        len(placed) for placed in Checkpoint(store, stored).table("model").chunks.values()
    )
    store.forget(stored.key)
    with costs.of("restore"):
        got = [one for node in on_all(-(-ranks // NODE), read_node) for one in node]
    for name, box, into in got:
        assert (into == whole[name][box.slices] + 2).all(), name
    costs["restored, bytes"] = sum(into.nbytes for _, _, into in got)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _text(name: str, value: float) -> str:
    is_count = "requests" in name or "bytes" in name
    return f"{value:,.0f}" if is_count else f"{value:,.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    # a restore on nine tenths of four ranks has one of each replica
    world = int_from(2 * REPLICAS, multiple_of=REPLICAS)
    parser.add_argument("--ranks", type=world, nargs="+", default=[10, 30, 100, 300, 1000])
    parser.add_argument("--wide", type=positive_int, default=128, help="columns of the matrices")
    parser.add_argument("--s3", action="store_true", help="against a local S3 server")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not asked.s3:
            roots = [f"{folder}/{secrets.token_hex(4)}" for _ in asked.ranks]
            found = [
                in_fresh(measured, root, {}, ranks, asked.wide)
                for root, ranks in zip(roots, asked.ranks, strict=True)
            ]
        else:
            with ministack(Path(folder)) as server:
                places = [server.new_place() for _ in asked.ranks]
                found = [
                    in_fresh(measured, place.url, place.options, ranks, asked.wide)
                    for place, ranks in zip(places, asked.ranks, strict=True)
                ]
    show_growth(asked.ranks, found, _text, 110)


if __name__ == "__main__":
    main()
