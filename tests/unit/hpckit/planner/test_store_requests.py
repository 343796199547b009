"""The formulas of a store's requests against real saves, restores, verifications and prunes."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from checkpointing.codec import Codec
from checkpointing.format.chunks import Chunk
from checkpointing.format.item_table import ItemTable, TensorSpec
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId, new_pack
from checkpointing.format.tiles import Box
from checkpointing.retention import Last
from checkpointing.service.config import ServiceConfig
from checkpointing.service.coordinator.save_announcement import (
    announced,
    fate_of_save,
    is_announced,
)
from checkpointing.service.coordinator.save_coordinator import SaveCoordinator, longest_poll_s
from checkpointing.service.registry.snapshot_registry import SnapshotRead
from checkpointing.service.service_counters import ServiceCounters
from checkpointing.service.snapshots import Generation, RankSnapshot, SlotBox, SnapshotLayout
from checkpointing.state.structure_comparison import Inventory
from checkpointing.storage import Buffer, ObjectInfo
from checkpointing.storage.forwarding_storage import ForwardingStorage
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.store.catalog import CatalogEntry, committed
from checkpointing.store.checkpoint import BoxRead, Checkpoint
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.inspection.integrity_check import verify
from checkpointing.store.read import chunk_fetcher
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex, StoredChunks, view_store
from checkpointing.store.write.manifest_commit import commit, part_entries, write_part
from checkpointing.store.write.part_writer import WrittenPart
from hpckit.planner import store_costs
from hpckit.planner.store_costs import CheckpointShape, StoreRequests

ROWS, COLUMNS = 1024, 64  # of each rank, in float32: a tile of 256 KiB, which has no columns cut
CHUNK = 4 * ROWS * COLUMNS


class Counting(ForwardingStorage):
    """Requests as S3 would count them."""

    def __init__(self, url: str) -> None:
        super().__init__(MemoryStorage(url))
        self._lock, self.seen = threading.Lock(), StoreRequests()

    def taken(self) -> StoreRequests:
        """Since it was asked before."""
        with self._lock:
            seen, self.seen = self.seen, StoreRequests()
        return seen

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self._count(put=1)
        super().put(key, parts)

    def create(self, key: str, data: bytes) -> bool:
        self._count(put=1)
        return super().create(key, data)

    def get(self, key: str) -> bytes:
        self._count(get=1)
        return super().get(key)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        self._count(get=1)
        return super().get_range(key, start, length)

    def list(self, prefix: str) -> list[ObjectInfo]:
        found = super().list(prefix)
        self._count(list=store_costs.pages(len(found)))
        return found

    def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        self._count(delete=-(-len(doomed) // store_costs.PAGE))
        super().delete(doomed)

    def _count(self, **more: int) -> None:
        with self._lock:
            self.seen += StoreRequests(**more)


class Floor:
    """One node's ranks, whose state is random at every step."""

    lost_ranks: frozenset[int] = frozenset()

    def __init__(self, layouts: Sequence[SnapshotLayout]) -> None:
        self.ledger, self._layouts = ServiceCounters(), layouts

    @contextmanager
    def reading(
        self, generation: Generation, rank: int, step: int
    ) -> Iterator[SnapshotRead | None]:
        layout = self._layouts[rank]
        memory = np.random.default_rng((rank, step)).integers(0, 256, layout.end, np.uint8)
        yield SnapshotRead(RankSnapshot(generation, rank, step, 0, layout), memory, 0.0)

    def notify(self, generation: Generation, kind: str, **fields: Any) -> None:
        pass

    def moved(self) -> None:
        pass

    def gives_up(self, generation: Generation) -> bool:
        return False

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def await_parts(self, generation: Generation, missing: int) -> None:
        pass

    def ranks_of(self, generation: Generation) -> frozenset[int]:
        return frozenset(range(generation.world_size))


def layouts(ranks: int, tensors: int) -> list[SnapshotLayout]:
    """Rows of each tensor for each rank, half of them in another item."""

    def place(rank: int, number: int) -> SlotBox:
        name = f"{'model' if number % 2 else 'optim'}/w{number}"
        shape = (ROWS * ranks, COLUMNS)
        return SlotBox(name, "float32", shape, (ROWS * rank, 0), (ROWS, COLUMNS), number * CHUNK)

    return [
        SnapshotLayout(f"{rank}", tuple(place(rank, n) for n in range(tensors)))
        for rank in range(ranks)
    ]


def node(ranks: int, tensors: int, pack_bytes: int) -> tuple[Counting, SaveCoordinator, Generation]:
    """A service of one node that has all ranks, by its rounds."""
    storage = Counting(f"memory://{secrets.token_hex(8)}")
    store = Store.at(storage, create=True)
    config = ServiceConfig(url=storage.url, run="run", keep=(), compress=False)
    rounds = SaveCoordinator(store, config, Floor(layouts(ranks, tensors)))
    rounds.writer.options = replace(rounds.writer.options, pack_bytes=pack_bytes)
    return storage, rounds, Generation("aaaaaaaa", ranks, owner=0)


def save(rounds: SaveCoordinator, generation: Generation, step: int) -> None:
    rounds.carry_out(rounds.lead(generation, frozenset(range(generation.world_size)), step))


CASES = [
    CheckpointShape(ranks, 1, 2, tensors, CHUNK, pack_bytes, kept)
    for ranks, tensors, pack_bytes, kept in [
        (1, 2, 64 << 20, 1),
        (2, 3, 64 << 20, 2),
        (4, 5, 2 * CHUNK + 100, 1),
        (8, 2, 1, 4),
        (8, 7, 3 * CHUNK + 8, 3),
    ]
]


@pytest.fixture(params=[1000, 3])
def page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Keys of an answer: few, so that few keys take several."""
    monkeypatch.setattr(store_costs, "PAGE", request.param)
    return int(request.param)


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_save_takes_these_requests_and_objects(case: CheckpointShape) -> None:
    storage, rounds, generation = node(case.ranks, case.chunks, case.pack_bytes)
    for step in range(case.kept):
        save(rounds, generation, step)
    storage.taken()
    before = len(storage.list("packs/"))
    storage.taken()
    save(rounds, generation, case.kept)
    assert storage.taken() == store_costs.save(case)
    assert len(storage.list("packs/")) - before == case.packs
    assert not storage.list("runs/run/parts/")
    rounds.close()


def test_a_save_of_two_nodes() -> None:
    """The one without rank 0 writes first, so that the other one need not wait."""
    case = CheckpointShape(8, 2, 2, 2, CHUNK, 64 << 20, 1)
    storage, leader, generation = node(case.ranks, case.chunks, case.pack_bytes)
    save(leader, generation, 0)
    store = Store(storage, leader.store.record)
    other = SaveCoordinator(
        store, ServiceConfig(url=storage.url, run="run", compress=False), Floor(layouts(8, 2))
    )
    # what each wrote before, as if it had been a save of both
    other.writer._known = {rank: leader.writer._known.pop(rank) for rank in range(4, 8)}
    storage.taken()
    led = leader.lead(generation, frozenset(range(4)), 1)
    seen = storage.taken()
    followed = other.follow(generation, frozenset(range(4, 8)), 0)
    assert followed is not None
    storage.taken()
    other._write_parts(followed)
    leader.carry_out(led)
    assert seen + storage.taken() == store_costs.save(case)
    leader.close()


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_all_ranks_read_of_it(case: CheckpointShape, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank is a store of its own, as a process has; a node's first save looks at it as well."""
    monkeypatch.setattr(chunk_fetcher, "BATCH", 2 * CHUNK)
    storage, rounds, generation = node(case.ranks, case.chunks, case.pack_bytes)
    save(rounds, generation, 0)
    storage.taken()
    for layout in layouts(case.ranks, case.chunks):
        stored = committed(rounds.store)[0][0].stored
        storage.taken()
        checkpoint = Checkpoint(Store(storage, rounds.store.record), stored)
        Inventory.of(checkpoint)
        manifest = storage.taken()  # by one rank of each node
        checkpoint.read_into(
            BoxRead(at.name, Box(at.offsets, at.sizes), np.empty(at.sizes, "u4"))
            for at in layout.places
        )
        seen = manifest * case.nodes + storage.taken() * case.ranks
        most = store_costs.restore(case, 2 * CHUNK)
        assert seen == most if case.packs_per_rank == 1 else seen.get <= most.get
        assert seen.get > case.ranks * case.packs_per_rank, "its manifest, and each pack"
        assert replace(seen, get=0) == StoreRequests()
    store = Store(storage, rounds.store.record)
    known = [RunChunkIndex(store, "run") for _ in range(case.ranks)]
    chunks = StoredChunks(store, "run", view_store(store, "run"))
    storage.taken()
    for its in known:
        its.index(chunks)
    assert storage.taken() * case.nodes == store_costs.index(case)
    rounds.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_quick_verification(case: CheckpointShape) -> None:
    storage, rounds, generation = node(case.ranks, case.chunks, case.pack_bytes)
    save(rounds, generation, 0)
    store = Store(storage, rounds.store.record)
    found = store.manifests()
    storage.taken()
    assert verify(store, CatalogEntry(found[0], store.document(found[0])), "quick") == []
    assert storage.taken() == store_costs.verify(case)
    rounds.close()


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_prune_that_removes_one_checkpoint(case: CheckpointShape) -> None:
    storage, rounds, generation = node(case.ranks, case.chunks, case.pack_bytes)
    for step in range(case.kept + 1):
        save(rounds, generation, step)
    store = rounds.store
    prune(store, "run", [Last(case.kept + 1)], grace_s=0.0)  # so that all documents are known
    storage.taken()
    done = prune(store, "run", [Last(case.kept)], grace_s=0.0)
    assert len(done.removed) == 1
    assert done.swept is not None
    assert done.swept.deleted == case.packs
    assert storage.taken() == store_costs.prune(case)
    rounds.close()


@pytest.mark.parametrize(("nodes", "seconds"), [(2, 2.0), (600, 2.0), (2048, 6.144)])
def test_nodes_that_wait_are_not_too_much_for_a_store(nodes: int, seconds: float) -> None:
    assert longest_poll_s(nodes) == pytest.approx(seconds)
    asked = store_costs.waiting(CheckpointShape(8 * nodes, nodes, 2, 2, CHUNK, 1 << 20, 3)).total
    assert nodes * asked / longest_poll_s(nodes) <= 2000


@pytest.mark.parametrize("kept", [0, 3])
def test_what_a_node_asks_while_it_waits_for_another(kept: int) -> None:
    case = CheckpointShape(8, 2, 2, 2, CHUNK, 1 << 20, kept)
    storage, rounds, generation = node(case.ranks, case.chunks, case.pack_bytes)
    for step in range(kept):
        save(rounds, generation, step)
    round_ = rounds.lead(generation, frozenset(range(8)), kept)
    storage.taken()
    assert is_announced(rounds.store, round_.save)
    assert fate_of_save(rounds.store, round_.save) is None
    assert announced(rounds.store, "run", generation) is not None
    assert storage.taken() == store_costs.waiting(case)
    rounds.close()


@pytest.mark.parametrize("chunks", [2, 2000])
def test_how_large_documents_are_and_how_they_are_read(chunks: int) -> None:
    """Of chunks that cannot be compressed; a small document takes one request, a large one more."""
    case = CheckpointShape(8, 1, 1, chunks, 64, 1 << 20, 0)
    storage = Counting(f"memory://{secrets.token_hex(8)}")
    store, made = Store.at(storage, create=True), SaveId("run", 1, "aaaaaaaa")
    for rank in range(case.ranks):
        table = ItemTable()
        pack = new_pack(made.session)
        rows = range(chunks * rank, chunks * (rank + 1))
        placed = {
            Box((row, 0), (1, 16)): Chunk(
                secrets.token_bytes(32),
                pack,
                64 * row,
                64,
                64,
                Codec.RAW,
                int.from_bytes(secrets.token_bytes(8), "little"),
            )
            for row in rows
        }
        table.place("w", TensorSpec("float32", (chunks * case.ranks, 16), (1, 16)), placed)
        write_part(
            store,
            ManifestHeader(made, 0.0, case.ranks),
            rank,
            WrittenPart({"w": table}, {pack: 1}, 0, 0),
        )
    sizes = [entry.size for entry in part_entries(store, made)]
    assert max(sizes) == pytest.approx(case.part_bytes, rel=0.15, abs=400)
    storage.taken()
    commit(store, made, case.ranks)
    each = 1 if chunks == 2 else store_costs.reads(case)
    assert storage.taken().get == case.ranks * each
    (stored,) = store.manifests()
    assert stored.size == pytest.approx(case.manifest_bytes, rel=0.15, abs=400)
    storage.taken()
    store.document(stored).content()
    assert storage.taken().get == store_costs.reads(case)
