"""The manifest of a checkpoint, and the part records that it is made of.

A part record says what one rank wrote; a manifest is a pure function of all part records of a save,
so any process that sees them all may commit, and all of them write the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import DamagedError
from checkpointing.format import document_container, replica_differences
from checkpointing.format.canonical_json import JsonReader
from checkpointing.format.chunk_columns import ChunkColumns, by_columns, runs
from checkpointing.format.chunks import ID_BYTES, PACK_BYTES
from checkpointing.format.document_container import TENSOR_GROUPS, DocumentContainer
from checkpointing.format.item_table import (
    ItemTable,
    TableOutline,
    decompress,
    merge,
    outline_of,
    outline_to_bytes,
    parse,
    parse_outline,
    to_bytes,
)
from checkpointing.format.object_keys import SaveId
from checkpointing.format.replica_differences import (
    MarkedDifferences,
    RankFingerprints,
    compare,
    dump_groups,
    dump_marked,
    load_groups,
    load_marked,
    mark_of,
)
from checkpointing.format.values.json_values import Json, decode, encode
from checkpointing.storage.interface import Buffer

MANIFEST = "hpckit-manifest"
PART = "hpckit-part"
ABANDONED = "hpckit-abandoned"

_PACKS = "packs"
_ITEM, _GROUP = "item:", "group:"
_FINGERPRINTS = "fingerprints"
PACK_ROW = np.dtype([("pack", "u1", PACK_BYTES), ("size", "<u8")])


@dataclass(frozen=True)
class ManifestHeader:
    """The fields that describe a checkpoint as a whole."""

    save: SaveId
    created: float  # Unix time of the save's start, seconds
    world_size: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    revision: int = 0
    dropped: tuple[str, ...] = ()  # items that it had and that retention removed
    source: str = ""  # the source of an imported checkpoint, for display
    marked: MarkedDifferences | None = None  # its difference mark; None: no known differences
    certified: str = ""  # how its ranks' computations were compared; "": it is not certified

    @property
    def is_suspect(self) -> bool:
        """Whether ranks held different replicas of something that should be equal."""
        return self.marked is not None and self.marked.is_suspect


@dataclass(frozen=True)
class ItemSummary:
    """The summary of one item, which is known without reading its table."""

    tensors: int
    chunks: int
    raw_bytes: int  # decoded
    stored_bytes: int  # bytes of its chunks, each content once, without the bases that they need


@dataclass(frozen=True)
class ManifestContent:
    """A whole manifest, or one rank's part record, in memory."""

    header: ManifestHeader
    items: Mapping[str, ItemTable]
    packs: Mapping[bytes, int]  # every pack that is referred to, and its size in bytes
    replicas: RankFingerprints | None = None  # in a part record: what its rank shares with others


def item_of(name: str) -> str:
    """Returns the item that a tensor or value belongs to: "model" for "model/wte.weight"."""
    return name.partition("/")[0]


def build_part(content: ManifestContent, rank: int) -> bytes:
    more: dict[str, Any] = {"rank": rank}
    if content.replicas is not None:
        more["groups"] = dump_groups(content.replicas.groups)
    return _build(PART, content, more)


def build_manifest(content: ManifestContent) -> bytes:
    return _build(MANIFEST, content, {})


def build_abandoned(save: SaveId) -> bytes:
    """Returns the object that takes the place of a manifest when a prune has abandoned its save, so
    that it can no longer be committed."""
    return document_container.build(ABANDONED, _identity(save), {})


def assemble(parts: Sequence[ManifestContent]) -> ManifestContent:
    """Returns the manifest of the checkpoint that the parts of all ranks make up.

    Args:
        parts: the parts in order of rank; rank 0's has the start time of the save and the metrics.

    Raises:
        ValueError: the parts do not fit together.
    """
    names = sorted({name for part in parts for name in part.items})
    items = {n: merge([p.items[n] for p in parts if n in p.items]) for n in names}
    packs = {pack: size for part in parts for pack, size in part.packs.items()}
    reports = {rank: part.replicas for rank, part in enumerate(parts) if part.replicas is not None}
    header = replace(parts[0].header, marked=mark_of(compare(reports)))
    return ManifestContent(header, items, dict(sorted(packs.items())))


def _identity(save: SaveId) -> dict[str, Any]:
    return {"run": save.run, "step": save.step, "session": save.session}


def _build(kind: str, content: ManifestContent, more: Mapping[str, Any]) -> bytes:
    header, packs = content.header, sorted(content.packs)
    index = {pack: i for i, pack in enumerate(packs)}
    rows = np.zeros(len(packs), PACK_ROW)
    for row, pack in zip(rows, packs, strict=True):
        row["pack"], row["size"] = np.frombuffer(pack, np.uint8), content.packs[pack]
    sections = {_PACKS: rows.tobytes()}
    items = {name: table.in_columns() for name, table in content.items.items()}
    tables: dict[str, bytes] = {}
    for name, table in items.items():
        tables |= _table_sections(name, table, index, is_part=kind == PART)
    sections |= tables
    if content.replicas is not None:
        sections[_FINGERPRINTS] = replica_differences.to_bytes(content.replicas.fingerprints)
    if header.marked is not None:
        more = {**more, "differing": dump_marked(header.marked)}
    summaries = {name: vars(summarise(table)) for name, table in items.items()}
    body = {
        **_identity(header.save),
        "created": header.created,
        "world_size": header.world_size,
        "metrics": {name: encode(value, name) for name, value in header.metrics.items()},
        "revision": header.revision,
        "dropped": list(header.dropped),
        **({"source": header.source} if header.source else {}),
        **({"certified": header.certified} if header.certified else {}),
        "items": summaries,
        **more,
    }
    features = [TENSOR_GROUPS] if len(tables) > len(items) else []
    return document_container.build(kind, body, sections, features)


def _table_sections(
    item: str, table: ItemTable, packs: Mapping[bytes, int], *, is_part: bool
) -> dict[str, bytes]:
    """Returns the sections that hold the table of an item: one, or an outline and groups."""
    outline = outline_of(table)
    if is_part or not outline.groups:
        return {_ITEM + item: to_bytes(table, packs)}
    sections = {_ITEM + item: outline_to_bytes(table, outline)}
    for number, names in enumerate(outline.groups):
        tensors = {name: table.tensors[name] for name in names}
        group = ItemTable(tensors, {name: table.chunks[name] for name in names})
        sections[group_section(item, number)] = to_bytes(group, packs)
    return sections


def group_section(item: str, number: int) -> str:
    """Returns the name of the section of a group of tensors."""
    return f"{_GROUP}{number}:{item}"


def summarise(table: ItemTable) -> ItemSummary:
    segments = table.in_columns().segments()
    taken = runs(by_columns(segments))  # few long runs, while the table's own order has many short
    ids, lengths = _ids_and_lengths(taken)
    count, stored = len(lengths), lengths
    if not _are_distinct(ids):
        ids, lengths = _ids_and_lengths(runs(segments))
        stored = lengths[_once(ids)]
    return ItemSummary(len(table.tensors), count, table.raw_bytes, int(stored.sum()))


def _ids_and_lengths(
    taken: Sequence[tuple[ChunkColumns, slice]],
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    no_ids, no_lengths = np.zeros((0, ID_BYTES), np.uint8), np.zeros(0, np.uint64)
    ids = np.concatenate([no_ids, *(columns["id"][rows] for columns, rows in taken)])
    lengths = np.concatenate([no_lengths, *(columns["length"][rows] for columns, rows in taken)])
    return ids, lengths


def _are_distinct(ids: NDArray[np.uint8]) -> bool:
    """Returns whether all ids are known to differ, as their first bytes do."""
    keys = np.sort(np.ascontiguousarray(ids[:, :8]).view("<u8").reshape(-1))
    return not (keys[1:] == keys[:-1]).any()


def _once(ids: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Returns the index of the last occurrence of each id."""
    every = ids[::-1]
    _, first = np.unique(np.ascontiguousarray(every).view(f"V{ID_BYTES}"), return_index=True)
    return len(every) - 1 - first


class ManifestDocument:
    """A manifest, part record or abandoned save as stored; tables are read on demand."""

    def __init__(self, container: DocumentContainer, *, is_checked: bool = False) -> None:
        """Check and read the header.

        Args:
            is_checked: another process has read without an error all sections that are added by
                `hold`.

        Raises:
            DamagedError: it is inconsistent.
        """
        self.container, self._is_checked = container, is_checked
        self._held: dict[str, Buffer] = {}  # contents of sections that are not read again
        self.kind, self.where = container.kind, container.where
        read = container.header
        self.save = SaveId(read.text("run"), read.count("step"), read.text("session"))
        self._packs: dict[bytes, int] | None = None
        if self.kind != ABANDONED:
            self.header = _header(read, self.save)
            self.items = {name: _summary(read, name) for name in read.object("items")}

    @property
    def rank(self) -> int:
        """The rank that wrote it, of a part record."""
        return self.container.header.count("rank")

    @property
    def sections(self) -> list[str]:
        """The names of the sections that say what the checkpoint has: its packs, and the table of
        each item or, if that is cut into groups, its outline."""
        return [_PACKS, *(_ITEM + item for item in self.items)]

    def hold(self, contents: Mapping[str, Buffer]) -> None:
        """Use these contents of sections, as `read_section` returns them, in place of the store's.
        Tables refer to their memory."""
        self._held |= contents

    def read_section(self, name: str) -> bytes:
        """Returns a section from the store, checked against its hash; tables are decompressed."""
        data = self.container.section(name)
        return data if name in (_PACKS, _FINGERPRINTS) else decompress(data, self._at(name))

    def packs(self) -> dict[bytes, int]:
        """Returns every pack that is referred to, in the order of the tables' indices, with its
        size."""
        if self._packs is None:
            data, _ = self._section(_PACKS)
            if len(data) % PACK_ROW.itemsize:
                raise DamagedError(f"{self.where}: its list of packs is cut off")
            rows = np.frombuffer(data, PACK_ROW)
            names = rows["pack"].tobytes()
            self._packs = {
                names[number * PACK_BYTES : (number + 1) * PACK_BYTES]: size
                for number, size in enumerate(rows["size"].tolist())
            }
        return self._packs

    def is_grouped(self, item: str) -> bool:
        """Whether the table of an item is cut into groups."""
        return self.container.has(group_section(item, 0))

    def outline(self, item: str) -> TableOutline:
        """Returns what the table of an item says besides its chunks."""
        data, _ = self._section(_ITEM + item)
        return parse_outline(data, self._at(_ITEM + item))

    def table(self, item: str) -> ItemTable:
        """Returns the table of one item, of all its groups."""
        if not self.is_grouped(item):
            data, is_checked = self._section(name := _ITEM + item)
            packs, is_part = list(self.packs()), self.kind == PART
            return parse(data, packs, self._at(name), is_part=is_part, is_checked=is_checked)
        outline = self.outline(item)
        whole = ItemTable(values=dict(outline.values))
        for number in range(len(outline.groups)):
            group = self.group(item, outline, number)
            whole.tensors |= group.tensors
            whole.chunks |= group.chunks
        return whole

    def group(self, item: str, outline: TableOutline, number: int) -> ItemTable:
        """Returns the table of a group of tensors of an item.

        Raises:
            DamagedError: as `table`; or it has other tensors than the outline says.
        """
        name = group_section(item, number)
        data, is_checked = self._section(name)
        found = parse(data, list(self.packs()), self._at(name), is_checked=is_checked)
        expected = {name: outline.tensors[name] for name in outline.groups[number]}
        if found.tensors != expected or list(found.tensors) != list(expected) or found.values:
            raise DamagedError(f"{self._at(name)}: it does not have the tensors of its outline")
        return found

    def _section(self, name: str) -> tuple[Buffer, bool]:
        """Returns the content of a section, and whether another process has checked it."""
        if (held := self._held.get(name)) is not None:
            return held, self._is_checked
        return self.read_section(name), False

    def _at(self, section: str) -> str:
        kind, _, name = section.partition(":")
        return f"{self.where}: {kind} {name!r}"

    def content(self) -> ManifestContent:
        """Returns the whole content."""
        tables = {name: self.table(name) for name in self.items}
        return ManifestContent(self.header, tables, self.packs(), self._replicas())

    def _replicas(self) -> RankFingerprints | None:
        read = self.container.header
        if not read.has("groups"):
            return None
        groups = load_groups(read, "groups")
        data = self.container.section(_FINGERPRINTS)
        return RankFingerprints(groups, replica_differences.from_bytes(data, groups, self.where))


def _header(read: JsonReader, save: SaveId) -> ManifestHeader:
    return ManifestHeader(
        save=save,
        created=read.number("created"),
        world_size=read.count("world_size"),
        metrics={name: _metric(name, v) for name, v in read.object("metrics").items()},
        revision=read.count("revision"),
        dropped=tuple(read.texts("dropped")),
        marked=load_marked(read.child("differing")) if read.has("differing") else None,
        source=read.text("source") if read.has("source") else "",
        certified=read.text("certified") if read.has("certified") else "",
    )


def _summary(read: JsonReader, name: str) -> ItemSummary:
    item = read.child("items").child(name)
    return ItemSummary(
        tensors=item.count("tensors"),
        chunks=item.count("chunks"),
        raw_bytes=item.count("raw_bytes"),
        stored_bytes=item.count("stored_bytes"),
    )


def _metric(name: str, value: Json) -> float:
    number = decode(value)
    try:
        if type(number) in (float, int):
            return float(number)
    except OverflowError:
        pass
    raise DamagedError(f"manifest: metric {name!r} is not a number")
