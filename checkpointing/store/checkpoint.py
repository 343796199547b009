"""A committed checkpoint, opened for reading: one tensor, one slice of it, or everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import DamagedError, SaveError
from checkpointing.format import manifest as forms
from checkpointing.format.element_types import element
from checkpointing.format.item_table import ItemTable, TableOutline, TensorSpec
from checkpointing.format.manifest import ManifestDocument, ManifestHeader, item_of
from checkpointing.format.tiles import Box, whole
from checkpointing.format.values.json_values import Json
from checkpointing.storage import Buffer
from checkpointing.store.read.chunk_fetcher import (
    ChunkCopies,
    ChunkFetcher,
    ChunkRequest,
    DamagedChunk,
)
from checkpointing.store.store import Store, StoredManifest

Array = NDArray[Any]


@dataclass(frozen=True)
class BoxRead:
    """A box of a tensor to read, and the array to read it into."""

    tensor: str  # full name
    box: Box
    into: Array  # of the shape of the box, writable, of any dtype with the tensor's itemsize
    waits: bool = False  # the array is not changed before `CheckedContent.deliver`


class CheckedContent:
    """What was read of a checkpoint, all of it checked. Of arrays that wait it is in memory of its
    own, the others have theirs."""

    def __init__(self, fetcher: ChunkFetcher) -> None:
        self._fetcher = fetcher

    @property
    def healed(self) -> list[DamagedChunk]:
        """The chunks that had to be read from other copies."""
        return self._fetcher.healed

    def deliver(self) -> None:
        """Fill the arrays that wait, and free the memory; a second call does nothing."""
        self._fetcher.deliver()


class Checkpoint:
    """One checkpoint. The table of an item is read when something of the item is asked for; of a
    table that is cut into groups of tensors, only the groups of the tensors that are read."""

    def __init__(
        self, store: Store, stored: StoredManifest, document: ManifestDocument | None = None
    ) -> None:
        """Read the manifest's header.

        Args:
            document: the manifest, if it is open already.

        Raises:
            FileNotFoundError: it was removed.
            DamagedError, FormatError: it cannot be used.
            SaveError: it is an abandoned save and not a checkpoint.
        """
        self.store, self.stored = store, stored
        self._document = store.document(stored) if document is None else document
        if self._document.kind == forms.ABANDONED:
            raise SaveError(f"{stored.save.id} was never committed: its session was declared dead")
        self._tables: dict[str, ItemTable] = {}
        self._outlines: dict[str, TableOutline] = {}
        self._groups: dict[tuple[str, int], ItemTable] = {}  # by item and number of the group

    @property
    def header(self) -> ManifestHeader:
        return self._document.header

    @property
    def document(self) -> ManifestDocument:
        return self._document

    @property
    def id(self) -> str:
        return self.header.save.id

    @property
    def items(self) -> list[str]:
        """The names of its items."""
        return list(self._document.items)

    def table(self, item: str) -> ItemTable:
        """Return the table of one item.

        Raises:
            KeyError: there is no such item.
        """
        self._require(item)
        if item not in self._tables:
            self._tables[item] = self._document.table(item)
        return self._tables[item]

    def outline(self, item: str) -> TableOutline:
        """Return what the table of an item says besides its chunks; raises as `table`."""
        self._require(item)
        if item not in self._outlines:
            if self._document.is_grouped(item):
                self._outlines[item] = self._document.outline(item)
            else:
                table = self.table(item)
                self._outlines[item] = TableOutline(table.tensors, table.values, ())
        return self._outlines[item]

    def groups_with(self, tensors: Iterable[str]) -> list[tuple[str, int]]:
        """Return the items and numbers of the groups with the chunks of these tensors, as far as
        tables are cut into groups; raises as `table`."""
        found: dict[tuple[str, int], None] = {}
        for name in tensors:
            number = self.outline(item := item_of(name)).group_of.get(name)
            if number is not None:
                found[item, number] = None
        return list(found)

    def group(self, item: str, number: int) -> ItemTable:
        """Return the table of a group of tensors; raises as `table`."""
        if (item, number) not in self._groups:
            outline = self.outline(item)
            self._groups[item, number] = self._document.group(item, outline, number)
        return self._groups[item, number]

    def table_with(self, tensor: str) -> ItemTable:
        """Return a table that has the chunks of this tensor, and maybe others of its item.

        Raises:
            KeyError: there is no such tensor.
        """
        self._spec(tensor)
        if (found := self._tables.get(item := item_of(tensor))) is not None:
            return found
        outline = self.outline(item)
        return self.group(item, outline.group_of[tensor]) if outline.groups else self.table(item)

    def tensors(self, items: Sequence[str] | None = None) -> dict[str, TensorSpec]:
        """Return all tensors of the given items, or of all items."""
        chosen = self.items if items is None else items
        return {name: spec for item in chosen for name, spec in self.outline(item).tensors.items()}

    def values(self) -> dict[str, Json]:
        """Return all values by full name, encoded."""
        return {
            name: value for item in self.items for name, value in self.outline(item).values.items()
        }

    def read(self, tensor: str, box: Box | None = None, copies: ChunkCopies | None = None) -> Array:
        """Return a tensor or a box of it as raw elements: unsigned integers (or complex128) of the
        dtype's size, row-major. `ml_dtypes` or torch can view them with their dtype.

        Raises:
            KeyError: there is no such tensor.
            ValueError: the box is not inside the tensor.
            DamagedError: it cannot be read as it was written.
        """
        spec = self._spec(tensor)
        box = box or whole(spec.shape)
        into = np.empty(box.sizes, element(spec.dtype).bits)
        self.read_into([BoxRead(tensor, box, into)], copies)
        return into

    def read_into(
        self, reads: Iterable[BoxRead], copies: ChunkCopies | None = None
    ) -> list[DamagedChunk]:
        """Read boxes of tensors in parallel, none of which waits; return the chunks that had to be
        read from other copies. What is stored raw is compared with its checksum, all else with its
        id.

        Raises:
            KeyError, ValueError, DamagedError: as `read`; the content of the arrays is undefined
                then.
            StoreError: the store is out of reach.
        """
        return self.read_checked(reads, copies).healed

    def read_checked(
        self, reads: Iterable[BoxRead], copies: ChunkCopies | None = None
    ) -> CheckedContent:
        """As `read_into`, but arrays that wait have their content only after `deliver` of what is
        returned. If this raises, they are not changed.

        Of a tensor of which only a part is read, whole chunks stay in memory until then.
        """
        fetcher = ChunkFetcher(self.store.storage, copies, by_checksum=True)
        damaged = fetcher.fetch(want for read in reads for want in self._wants(read))
        if damaged:
            more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
            raise DamagedError(f"{self.id}: {damaged[0]}{more}")
        return CheckedContent(fetcher)

    def _require(self, item: str) -> None:
        if item not in self._document.items:
            raise KeyError(f"{self.id} has no item {item!r}; its items are {', '.join(self.items)}")

    def _spec(self, tensor: str) -> TensorSpec:
        item = item_of(tensor)
        outline = self._outlines.get(item)
        if outline is None and item in self._document.items:
            outline = self.outline(item)
        spec = None if outline is None else outline.tensors.get(tensor)
        if spec is None:
            raise KeyError(f"{self.id} has no tensor {tensor!r}")
        return spec

    def _wants(self, read: BoxRead) -> Iterable[ChunkRequest]:
        spec = self._spec(read.tensor)
        if not read.box.is_inside(spec.shape):
            raise ValueError(f"{read.tensor!r} has the shape {spec.shape}: {read.box} is outside")
        bits = element(spec.dtype).bits
        target = read.into.view(bits)
        table = self.table_with(read.tensor)
        is_whole = read.box.sizes == spec.shape  # as it is inside, every box lies in it
        for placed, chunk in table.reaching(read.tensor, read.box):
            common = placed if is_whole else placed.intersect(read.box)
            if common is not None:
                use = _copier(target, read.box, placed, common, bits)
                yield ChunkRequest(chunk, spec.dtype, read.tensor, use, read.waits)


def _copier(
    target: Array, box: Box, placed: Box, common: Box, bits: np.dtype[Any]
) -> Callable[[Buffer], None]:
    """Returns a function that copies what is common to a chunk and a box out of the content of the
    chunk. A restore calls thousands of these, so they compute nothing that can be known before."""
    into = (common.relative_to(box) if any(box.offsets) else common).slices
    part = None if common is placed else common.relative_to(placed).slices
    sizes = placed.sizes

    def copy(raw: Buffer) -> None:
        source = np.frombuffer(raw, bits).reshape(sizes)
        target[into] = source if part is None else source[part]

    return copy
