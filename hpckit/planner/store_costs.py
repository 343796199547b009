"""The number of objects and requests of a checkpoint store, by the number of ranks and nodes.

Pure counts, derived from checkpointing/FORMAT.md and the code that follows it; a test compares them
with real saves, restores and prunes. In S3's terms: a listing costs a request per 1,000 keys.
Failures, retries and concurrent prunes are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil

from checkpointing.format.document_container import HEAD
from checkpointing.format.item_table import GROUPED, MOST_GROUPS
from checkpointing.format.manifest import PACK_ROW
from checkpointing.format.packs import MAGIC

PAGE = 1000
"""Keys in one answer to a list request, and in one delete request."""
CHUNK_ROW = 41.0
"""Compressed bytes of a chunk in a manifest or part record: an id of 32 and a checksum of 8 cannot
be compressed, the rest hardly counts (40.6 with 90,624 chunks, `benchmarks.store.store_scale`)."""
CHUNK_TABLE = 73 + 32
"""Bytes of the same before compression, for a matrix."""
DOCUMENT = 1000
"""Approximate bytes of a manifest or part record besides its tables."""


@dataclass(frozen=True)
class StoreRequests:
    """Numbers of requests by what providers charge for and limit."""

    put: int = 0
    get: int = 0
    list: int = 0
    delete: int = 0

    def __add__(self, other: StoreRequests) -> StoreRequests:
        return StoreRequests(
            *(getattr(self, f.name) + getattr(other, f.name) for f in fields(self))
        )

    def __mul__(self, times: int) -> StoreRequests:
        return StoreRequests(*(times * getattr(self, f.name) for f in fields(self)))

    @property
    def total(self) -> int:
        return self.put + self.get + self.list + self.delete


@dataclass(frozen=True)
class CheckpointShape:
    """A checkpoint whose ranks write the same amount each."""

    ranks: int
    nodes: int
    items: int
    """Number of items of the state of which a rank has a part: model, optimizer, ..."""
    chunks: int
    """Number of new chunks that each rank writes."""
    chunk_bytes: int
    """Stored bytes of each chunk."""
    pack_bytes: int
    """Largest bytes of a pack."""
    kept: int
    """Number of checkpoints of the run before this one."""

    @property
    def packs_per_rank(self) -> int:
        each = max(1, (self.pack_bytes - len(MAGIC)) // self.chunk_bytes)
        return ceil(self.chunks / each)

    @property
    def packs(self) -> int:
        """Return the number of objects that stay, besides the manifest."""
        return self.ranks * self.packs_per_rank

    @property
    def part_bytes(self) -> int:
        """Return the approximate bytes of one rank's part record."""
        return DOCUMENT + round(CHUNK_ROW * self.chunks)

    @property
    def manifest_bytes(self) -> int:
        """Return the approximate bytes of the manifest."""
        rows = CHUNK_ROW * self.ranks * self.chunks
        return DOCUMENT + round(rows) + PACK_ROW.itemsize * self.packs

    @property
    def table_bytes(self) -> int:
        """Return the bytes of the manifest's tables before compression, which the format bounds for
        each item."""
        return CHUNK_TABLE * self.ranks * self.chunks


def pages(keys: int) -> int:
    """Return the number of requests that list so many keys."""
    return max(1, ceil(keys / PAGE))


def save(saved: CheckpointShape) -> StoreRequests:
    """Return the requests of a save without those of nodes that wait, and not of the first save of
    a generation, which reads the last manifest (`index`) too."""
    announcing = StoreRequests(put=1, get=1, list=3 + pages(saved.kept))
    looking = StoreRequests(list=2 + 2 * pages(saved.kept))
    writing = StoreRequests(put=saved.packs_per_rank + 1)
    return announcing + looking * saved.nodes + writing * saved.ranks + _commit(saved)


def _commit(saved: CheckpointShape) -> StoreRequests:
    return StoreRequests(
        put=1,
        get=2 + saved.ranks * (1 if saved.part_bytes <= HEAD else reads(saved)),
        list=(2 if saved.nodes == 1 else 3) * pages(saved.ranks),
        delete=ceil(saved.ranks / PAGE) + 1,
    )


def reads(saved: CheckpointShape) -> int:
    """Return the requests for all of a manifest: its header, the packs, a table of each item."""
    return 2 + saved.items


def worst_looks(saved: CheckpointShape) -> int:
    """Return the list requests that `save` may take in addition: each node lists the parts that
    exist when it begins, none if it is early and nearly all if it is late."""
    return saved.nodes * (pages(saved.ranks) - 1)


def waiting(saved: CheckpointShape) -> StoreRequests:
    """Return the requests of one node without rank 0 for each check of the outcome of a save: at
    most every 2 seconds after the first few, and less often if nodes are many."""
    return StoreRequests(get=2, list=3 + pages(saved.kept))


def index(saved: CheckpointShape) -> StoreRequests:
    """Return the requests of all nodes at the first save of a generation, which may refer to
    existing chunks: each node reads the tables of the last manifest, or of those that are cut into
    groups of tensors, the groups of its ranks. The most, if there are any; else exact."""
    return StoreRequests(get=reads(saved) + groups(saved)) * saved.nodes


def groups(saved: CheckpointShape) -> int:
    """Return the largest number of groups of tensors that the tables of all items are cut into."""
    of_item = saved.ranks * saved.chunks // saved.items
    return saved.items * (MOST_GROUPS + 1) if of_item >= GROUPED else 0


def restore(saved: CheckpointShape, batch_bytes: int) -> StoreRequests:
    """Return the largest number of requests that all ranks together take to read what each wrote,
    as stored, without bases, if one rank of each node reads the manifest; exact if a rank's part is
    one pack and no table is cut into groups of tensors.

    Args:
        batch_bytes: that a thread reads at a time (`checkpointing.store.read.chunk_fetcher.BATCH`).
    """
    batches = ceil(saved.chunks / max(1, batch_bytes // saved.chunk_bytes))
    ranges = batches + saved.packs_per_rank - 1  # one ends where a batch does, or a pack
    manifest = StoreRequests(get=reads(saved) + groups(saved)) * saved.nodes
    return manifest + StoreRequests(get=ranges) * saved.ranks


def verify(saved: CheckpointShape) -> StoreRequests:
    """Return the requests of one process that compares a manifest with the tables in all packs
    (`--level quick`). The most, if tables are cut into groups of tensors; else exact."""
    return StoreRequests(get=reads(saved) + groups(saved) + 2 * saved.packs)


def prune(saved: CheckpointShape) -> StoreRequests:
    """Return the requests of one prune by a service that has seen all manifests, when no process
    saves and no grace period is left: it removes one checkpoint, writes deletion marks for its
    packs, and deletes them."""
    before, after = pages(saved.kept + 1), pages(saved.kept)
    packs = pages((saved.kept + 1) * saved.packs)
    clock = StoreRequests(put=1, list=1, delete=1)
    choosing = StoreRequests(list=2 * before + 1)
    removing = clock + StoreRequests(put=1, list=before + 3, delete=2)
    marking = clock + StoreRequests(put=1, list=2 + 2 * after + packs + 2 + after + 1)
    burying = StoreRequests(get=1, list=1 + 2 + 2 * after + packs + 1 + after)
    burying += StoreRequests(delete=ceil(saved.packs / PAGE) + 1)
    ending = StoreRequests(list=1 + 1 + after + 1 + 1 + after)
    return choosing + removing + marking + burying + ending
