"""Checks whether checkpoints are whole, on three levels; a problem names object, tensor and
step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format import packs as pack_format
from checkpointing.format.chunks import Chunk
from checkpointing.format.item_table import ItemTable
from checkpointing.format.object_keys import pack_key
from checkpointing.storage import Storage
from checkpointing.store.catalog import CatalogEntry
from checkpointing.store.read.chunk_decoder import check_stored
from checkpointing.store.read.chunk_fetcher import THREADS, ChunkFetcher, ChunkRequest
from checkpointing.store.read.read_batches import by_place, chain
from checkpointing.store.store import Store

Level = Literal["quick", "crc", "full"]

# checkpoints checked together: a base that all of them need is read once and not eight times
TOGETHER = 8
# chunks of checkpoints that are checked together: some hundred bytes of memory each
MOST_CHUNKS = 1 << 20


@dataclass(frozen=True)
class IntegrityProblem:
    """One problem of a checkpoint."""

    step: int
    id: str
    tensor: str  # "" if it does not concern a single tensor
    text: str  # names the object

    def __str__(self) -> str:
        return f"step {self.step}: {self.tensor + ': ' if self.tensor else ''}{self.text}"


def together(found: Sequence[CatalogEntry]) -> Iterator[Sequence[CatalogEntry]]:
    """Split checkpoints into groups for `verify_all`, in their order, each as large as memory
    allows."""
    group: list[CatalogEntry] = []
    chunks = 0
    for one in found:
        more = sum(item.chunks for item in one.document.items.values())
        if group and (len(group) >= TOGETHER or chunks + more > MOST_CHUNKS):
            yield group
            group, chunks = [], 0
        group.append(one)
        chunks += more
    if group:
        yield group


def verify(
    store: Store,
    found: CatalogEntry,
    level: Level = "full",
    on_bytes: Callable[[int], None] | None = None,
) -> list[IntegrityProblem]:
    """Check a checkpoint; return its problems, none if it is whole. See `verify_all`."""
    return verify_all(store, [found], level, on_bytes)[0]


def verify_all(
    store: Store,
    found: Sequence[CatalogEntry],
    level: Level = "full",
    on_bytes: Callable[[int], None] | None = None,
) -> list[list[IntegrityProblem]]:
    """Check checkpoints; return the problems of each, none if it is whole. Chunks that several need
    are read once. The tables of all are in memory: `together` says how many to pass at a time.

    Args:
        level: "quick" compares the manifests with the tables at the ends of the packs, "crc" reads
            all stored bytes and compares checksums, "full" decodes them and compares hashes.
        on_bytes: called with the number of stored bytes that were processed, from any thread.

    Raises:
        StoreError: the store is out of reach.
    """
    # the sizes of packs are checked against those in one manifest
    if level == "quick" and len(found) > 1:
        return [verify(store, one, level, on_bytes) for one in found]
    problems: list[list[IntegrityProblem]] = [[] for _ in found]
    owners: Owners = {}
    for i, one in enumerate(found):
        problems[i] += _add_owners(owners, i, one)
    check = {"quick": _quick, "crc": _crc, "full": _full}[level]
    for needed, text in check(store.storage, found, owners, on_bytes or (lambda _: None)):
        for i, tensor in owners[needed].items():
            save = found[i].stored.save
            problems[i].append(IntegrityProblem(save.step, save.id, tensor, text))
    return problems


Needed: TypeAlias = tuple[Chunk, str]  # a chunk and its dtype, without which an id has no meaning
Owners: TypeAlias = dict[Needed, dict[int, str]]  # a tensor that needs it, by number of checkpoint


def _add_owners(owners: Owners, number: int, found: CatalogEntry) -> Iterator[IntegrityProblem]:
    """Add what a checkpoint needs; yield the problems of its tables."""
    save = found.stored.save
    for item in found.document.items:
        try:
            table = found.document.table(item)
        except (DamagedError, FormatError, FileNotFoundError) as error:
            yield IntegrityProblem(save.step, save.id, "", str(error))
            continue
        for name, chunk in _chunks(table):
            needed = chunk, table.tensors[name].dtype
            owners.setdefault(needed, {}).setdefault(number, name)


def _chunks(table: ItemTable) -> Iterator[tuple[str, Chunk]]:
    for name, placed in table.chunks.items():
        for chunk in placed.values():
            for at in chain(chunk):
                yield name, at


Wrong: TypeAlias = Iterator[tuple[Needed, str]]


def _quick(
    storage: Storage, found: Sequence[CatalogEntry], owners: Owners, on_bytes: Callable[[int], None]
) -> Wrong:
    by_pack: dict[bytes, list[Needed]] = {}
    for needed in owners:
        by_pack.setdefault(needed[0].pack, []).append(needed)
    # without tables, the manifest itself may be damaged
    sizes = found[0].document.packs() if owners else {}
    with ThreadPoolExecutor(THREADS, "verify") as pool:
        check = partial(_check_pack, storage, sizes)
        for problems, group in zip(
            pool.map(check, by_pack.values()), by_pack.values(), strict=True
        ):
            on_bytes(sum(chunk.length for chunk, _ in group))
            yield from problems


def _check_pack(
    storage: Storage, sizes: Mapping[bytes, int], needed: Sequence[Needed]
) -> list[tuple[Needed, str]]:
    pack = needed[0][0].pack
    key = pack_key(pack)
    try:
        rows = read_footer(storage, key, sizes[pack])
    except FileNotFoundError:
        return [(one, f"{key}: the pack does not exist") for one in needed]
    except DamagedError as error:
        return [(one, f"{key}: {error}") for one in needed]
    stated = {
        (int(r["offset"]), int(r["length"]), int(r["checksum"]), r["id"].tobytes()) for r in rows
    }
    return [
        ((c, dtype), f"{key} at byte {c.offset}: the pack's own table does not list this chunk")
        for c, dtype in needed
        if (c.offset, c.length, c.checksum, c.id) not in stated
    ]


def read_footer(storage: Storage, key: str, size: int) -> pack_format.Rows:
    """Return the table at the end of a pack of `size` bytes.

    Raises:
        FileNotFoundError: the pack is missing.
        DamagedError: it is not whole.
    """
    tail = pack_format.TRAILER.itemsize
    trailer = storage.get_range(key, max(size - tail, 0), min(tail, size))
    start, length = pack_format.parse_trailer(trailer, size)
    return pack_format.parse_footer(storage.get_range(key, start, length), trailer)


def _crc(
    storage: Storage, found: Sequence[CatalogEntry], owners: Owners, on_bytes: Callable[[int], None]
) -> Wrong:
    fetcher = ChunkFetcher(storage)
    groups = by_place(owners, lambda needed: needed[0], fetcher.batch_bytes)
    with ThreadPoolExecutor(THREADS, "verify") as pool:
        for size, problems in pool.map(partial(_check_stored, fetcher), groups):
            on_bytes(size)
            yield from problems


def _check_stored(
    fetcher: ChunkFetcher, group: Iterable[Needed]
) -> tuple[int, list[tuple[Needed, str]]]:
    problems: list[tuple[Needed, str]] = []
    stored = fetcher.borrow(chunk for chunk, _ in group)
    for needed in group:
        try:
            data = stored[needed[0].place]
            if isinstance(data, DamagedError):
                raise data
            check_stored(needed[0], data)
        except DamagedError as error:
            problems.append((needed, str(error)))
    return sum(chunk.length for chunk, _ in group), problems


def _full(
    storage: Storage, found: Sequence[CatalogEntry], owners: Owners, on_bytes: Callable[[int], None]
) -> Wrong:
    wants = [
        ChunkRequest(chunk, dtype, next(iter(numbers.values())), lambda raw: None)
        for (chunk, dtype), numbers in owners.items()
    ]
    ratio = sum(c.length for c, _ in owners) / max(sum(c.raw_length for c, _ in owners), 1)
    damaged = ChunkFetcher(storage).fetch(wants, lambda n: on_bytes(int(n * ratio)))
    for damage in damaged:
        yield (damage.want.chunk, damage.want.dtype), damage.problem
