"""Whether a checkpoint is whole: three levels, each says object, tensor and step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format import packs as pack_format
from checkpointing.format.chunks import Chunk
from checkpointing.format.manifest import Document
from checkpointing.format.names import pack_key
from checkpointing.format.table import Table
from checkpointing.storage import Storage
from checkpointing.store.catalog import Found
from checkpointing.store.fetch import THREADS, Damage, Fetcher, Want, check_stored, ranges
from checkpointing.store.store import Store

Level = Literal["quick", "crc", "full"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a checkpoint."""

    step: int
    id: str
    tensor: str  # "" if it is not one tensor's
    text: str  # names the object

    def __str__(self) -> str:
        return f"step {self.step}: {self.tensor + ': ' if self.tensor else ''}{self.text}"


def verify(
    store: Store,
    found: Found,
    level: Level = "full",
    on_bytes: Callable[[int], None] | None = None,
) -> list[Problem]:
    """Check a checkpoint; what is wrong with it, nothing if it is whole.

    Args:
        level: "quick" compares the manifest with the tables at the ends of its packs, "crc" reads
            all stored bytes and compares checksums, "full" decodes them and compares hashes.
        on_bytes: told how many stored bytes were dealt with, from any thread.

    Raises:
        StoreError: the store is out of reach.
    """
    save, document = found.stored.save, found.document
    tables: dict[str, Table] = {}
    problems = []
    for item in document.items:
        try:
            tables[item] = document.table(item)
        except (DamagedError, FormatError, FileNotFoundError) as error:
            problems.append(Problem(save.step, save.id, "", str(error)))
    owners = _owners(tables)
    check = {"quick": _quick, "crc": _crc, "full": _full}[level]
    for chunk, text in check(store.storage, document, owners, on_bytes or (lambda _: None)):
        problems.append(Problem(save.step, save.id, owners[chunk][0] if chunk else "", text))
    return problems


Owners = Mapping[Chunk, tuple[str, str]]  # chunk -> a tensor that needs it, its dtype


def _owners(tables: Mapping[str, Table]) -> dict[Chunk, tuple[str, str]]:
    owners: dict[Chunk, tuple[str, str]] = {}
    for table in tables.values():
        for name, placed in table.chunks.items():
            for chunk in placed.values():
                at: Chunk | None = chunk
                while at is not None:
                    owners.setdefault(at, (name, table.tensors[name].dtype))
                    at = at.base
    return owners


Wrong = Iterator[tuple[Chunk | None, str]]


def _quick(
    storage: Storage, document: Document, owners: Owners, on_bytes: Callable[[int], None]
) -> Wrong:
    by_pack: dict[bytes, list[Chunk]] = {}
    for chunk in owners:
        by_pack.setdefault(chunk.pack, []).append(chunk)
    sizes = document.packs() if owners else {}  # no tables, maybe because it is damaged
    with ThreadPoolExecutor(THREADS, "verify") as pool:
        check = partial(_check_pack, storage, sizes)
        for problems, chunks in zip(
            pool.map(check, by_pack.values()), by_pack.values(), strict=True
        ):
            on_bytes(sum(chunk.length for chunk in chunks))
            yield from problems


def _check_pack(
    storage: Storage, sizes: Mapping[bytes, int], chunks: list[Chunk]
) -> list[tuple[Chunk | None, str]]:
    key = pack_key(chunks[0].pack)
    try:
        rows = read_footer(storage, key, sizes[chunks[0].pack])
    except FileNotFoundError:
        return [(chunk, f"{key}: the pack is not there") for chunk in chunks]
    except DamagedError as error:
        return [(chunk, f"{key}: {error}") for chunk in chunks]
    stated = {
        (int(r["offset"]), int(r["length"]), int(r["checksum"]), r["id"].tobytes()) for r in rows
    }
    return [
        (c, f"{key} at byte {c.offset}: the pack's own table does not have this chunk")
        for c in chunks
        if (c.offset, c.length, c.checksum, c.id) not in stated
    ]


def read_footer(storage: Storage, key: str, size: int) -> pack_format.Rows:
    """The table at the end of a pack of `size` bytes.

    Raises:
        FileNotFoundError: it is not there.
        DamagedError: it is not whole.
    """
    tail = pack_format.TRAILER.itemsize
    trailer = storage.get_range(key, max(size - tail, 0), min(tail, size))
    start, length = pack_format.parse_trailer(trailer, size)
    return pack_format.parse_footer(storage.get_range(key, start, length), trailer)


def _crc(
    storage: Storage, document: Document, owners: Owners, on_bytes: Callable[[int], None]
) -> Wrong:
    with ThreadPoolExecutor(THREADS, "verify") as pool:
        for size, problems in pool.map(partial(_check_range, storage), ranges(owners)):
            on_bytes(size)
            yield from problems


def _check_range(
    storage: Storage, group: list[Chunk]
) -> tuple[int, list[tuple[Chunk | None, str]]]:
    problems: list[tuple[Chunk | None, str]] = []
    stored = Fetcher(storage).read_group(group)
    for chunk in group:
        try:
            data = stored[chunk.place]
            if isinstance(data, DamagedError):
                raise data
            check_stored(chunk, data)
        except DamagedError as error:
            problems.append((chunk, str(error)))
    return sum(chunk.length for chunk in group), problems


def _full(
    storage: Storage, document: Document, owners: Owners, on_bytes: Callable[[int], None]
) -> Wrong:
    wants = [Want(chunk, dtype, name, lambda raw: None) for chunk, (name, dtype) in owners.items()]
    ratio = sum(c.length for c in owners) / max(sum(c.raw_length for c in owners), 1)
    damaged: list[Damage] = Fetcher(storage).fetch(wants, lambda n: on_bytes(int(n * ratio)))
    for damage in damaged:
        yield damage.want.chunk, damage.problem
