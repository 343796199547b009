"""Compares two checkpoints, tensor by tensor, reading a few tiles at a time.

They may be of different runs, stores and world sizes: chunks with equal ids have equal content
wherever they lie.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np

from checkpointing.errors import DamagedError
from checkpointing.format.element_types import element
from checkpointing.format.item_table import TensorSpec
from checkpointing.format.tiles import Box
from checkpointing.format.values.json_values import Json, readable
from checkpointing.store.checkpoint import Array, BoxRead, Checkpoint
from checkpointing.store.inspection.tensor_distance import TensorDistance, is_number

BATCH = 32 << 20  # bytes of each checkpoint that are in memory at a time

Kind = Literal["same", "changed", "only_a", "only_b", "other_shape", "other_dtype", "damaged"]


@dataclass(frozen=True)
class TensorChange:
    """How much a tensor changed."""

    chunks: int  # number of chunks of B
    chunks_changed: int
    elements: int
    elements_changed: int  # elements whose bits differ
    # changed elements of which either is NaN or infinite, which are left out of the numbers below
    not_finite: int
    max_abs: float | int | None  # largest |B - A|; None for dtypes without arithmetic here
    relative_l2: float | None  # |B - A| / |A|; None for such dtypes, and where A is zero


@dataclass(frozen=True)
class TensorDiff:
    """The difference of one tensor from A to B."""

    name: str
    kind: Kind
    a: TensorSpec | None
    b: TensorSpec | None
    change: TensorChange | None = None  # set if it was compared by content, and differs
    problem: str | None = None  # set if it is damaged


@dataclass(frozen=True)
class ValueDiff:
    """The difference of one value; the values are as
    `checkpointing.format.values.json_values.readable` returns them."""

    name: str
    kind: Literal["same", "changed", "only_a", "only_b"]
    a: Json = None
    b: Json = None


@dataclass(frozen=True)
class CheckpointComparison:
    """What the tables of two checkpoints say. The content of tensors that are "changed" is not
    read yet."""

    tensors: list[TensorDiff]
    values: list[ValueDiff]
    bytes: int  # decoded bytes that `measured` will read of both


def compare(
    a: Checkpoint, b: Checkpoint, globs: Sequence[str] | None = None
) -> CheckpointComparison:
    """Compare what is in the tables: names, shapes, dtypes, ids of chunks, values.

    Args:
        globs: patterns of full names, of which one has to match; None: everything.

    Raises:
        DamagedError, FileNotFoundError: a table cannot be read.
    """
    specs_a, specs_b = a.tensors(), b.tensors()
    wanted = [name for name in sorted({*specs_a, *specs_b}) if matches(name, globs)]
    tensors = [_kind(name, specs_a.get(name), specs_b.get(name), a, b) for name in wanted]
    values = _compare_values(a.values(), b.values(), globs)
    changed = [tensor for tensor in tensors if tensor.kind == "changed"]
    return CheckpointComparison(tensors, values, sum(job.bytes for job in _jobs(changed, a, b)))


def matches(name: str, globs: Sequence[str] | None) -> bool:
    """Return whether one of the patterns matches; `*` matches across "/" too."""
    return globs is None or any(fnmatchcase(name, glob) for glob in globs)


def measured(
    comparison: CheckpointComparison,
    a: Checkpoint,
    b: Checkpoint,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> list[TensorDiff]:
    """Return the tensors of a comparison, with numbers for those that changed.

    A tensor that is only cut differently, because another number of ranks saved it, turns out to be
    "same"; one that cannot be read is "damaged".

    Args:
        on_bytes: called with the number of decoded bytes, of either checkpoint, that were
            processed.

    Raises:
        StoreError: a store is out of reach.
    """
    changed = [tensor for tensor in comparison.tensors if tensor.kind == "changed"]
    sums = {t.name: _TensorDistances(TensorDistance(t.b.dtype)) for t in changed if t.b}
    for batch in _batches(_jobs(changed, a, b)):
        for job, read in _read_batch(batch, a, b):
            sums[job.tensor].add(job, read)
        on_bytes(sum(job.bytes for job in batch))
    return [
        sums[tensor.name].result(tensor) if tensor.name in sums else tensor
        for tensor in comparison.tensors
    ]


def _kind(
    name: str, spec_a: TensorSpec | None, spec_b: TensorSpec | None, a: Checkpoint, b: Checkpoint
) -> TensorDiff:
    kind: Kind
    if spec_a is None:
        kind = "only_b"
    elif spec_b is None:
        kind = "only_a"
    elif spec_a.dtype != spec_b.dtype:
        kind = "other_dtype"
    elif spec_a.shape != spec_b.shape:
        kind = "other_shape"
    else:
        kind = "same" if _ids(a, name) == _ids(b, name) else "changed"
    return TensorDiff(name, kind, spec_a, spec_b)


def _ids(checkpoint: Checkpoint, name: str) -> dict[Box, bytes]:
    placed = checkpoint.table_with(name).chunks[name]
    return {box: chunk.id for box, chunk in placed.items()}


def _compare_values(
    a: Mapping[str, Json], b: Mapping[str, Json], globs: Sequence[str] | None
) -> list[ValueDiff]:
    found = []
    for name in sorted({*a, *b}):
        if not matches(name, globs):
            continue
        if name not in b:
            found.append(ValueDiff(name, "only_a", a=readable(a[name])))
        elif name not in a:
            found.append(ValueDiff(name, "only_b", b=readable(b[name])))
        else:
            # Compared as text, because 1, 1.0 and True are equal in Python and are not the same
            # value.
            one, other = readable(a[name]), readable(b[name])
            same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
            found.append(ValueDiff(name, "same" if same else "changed", one, other))
    return found


@dataclass(frozen=True)
class _Job:
    """A box to compare: one chunk of B, and the same box of A however it is cut there."""

    tensor: str
    dtype: str
    box: Box
    is_same: bool  # by the ids; then A alone is read, for its norm, if the dtype has one

    @property
    def reads_a(self) -> bool:
        return not self.is_same or is_number(self.dtype)

    @property
    def bytes(self) -> int:
        """The decoded bytes that are read of A and B."""
        size = self.box.count * element(self.dtype).itemsize
        return size * (self.reads_a + (not self.is_same))


_Arrays = tuple[Array | None, Array | None]  # of A and B, as far as they were read


def _jobs(changed: Iterable[TensorDiff], a: Checkpoint, b: Checkpoint) -> Iterator[_Job]:
    for tensor in changed:
        ids = _ids(a, tensor.name)
        assert tensor.b is not None
        for box, id_ in _ids(b, tensor.name).items():
            yield _Job(tensor.name, tensor.b.dtype, box, ids.get(box) == id_)


def _batches(jobs: Iterable[_Job]) -> Iterator[list[_Job]]:
    batch: list[_Job] = []
    filled = 0
    for job in jobs:
        if batch and filled + job.bytes > 2 * BATCH:
            yield batch
            batch, filled = [], 0
        batch.append(job)
        filled += job.bytes
    if batch:
        yield batch


def _read_batch(
    batch: Sequence[_Job], a: Checkpoint, b: Checkpoint
) -> Iterator[tuple[_Job, _Arrays | DamagedError]]:
    """Read the boxes of a batch; if something is damaged, read them one by one to find out
    which."""
    try:
        arrays = _read(batch, a, b)
    except DamagedError as error:
        if len(batch) == 1:
            yield batch[0], error
            return
        for job in batch:
            yield from _read_batch([job], a, b)
        return
    yield from zip(batch, arrays, strict=True)


def _read(batch: Sequence[_Job], a: Checkpoint, b: Checkpoint) -> list[_Arrays]:
    in_a = [_room(job) if job.reads_a else None for job in batch]
    in_b = [None if job.is_same else _room(job) for job in batch]
    for checkpoint, arrays in ((a, in_a), (b, in_b)):
        checkpoint.read_into(
            BoxRead(job.tensor, job.box, into)
            for job, into in zip(batch, arrays, strict=True)
            if into is not None
        )
    return list(zip(in_a, in_b, strict=True))


def _room(job: _Job) -> Array:
    return np.empty(job.box.sizes, element(job.dtype).bits)


class _TensorDistances:
    """What has been found out about one tensor."""

    def __init__(self, distance: TensorDistance) -> None:
        self._distance = distance
        self._chunks = self._changed = 0
        self._problem: str | None = None

    def add(self, job: _Job, read: _Arrays | DamagedError) -> None:
        self._chunks += 1
        if isinstance(read, DamagedError):
            self._problem = self._problem or str(read)
            return
        a, b = read
        if a is None or b is None:
            self._distance.add_equal(a, job.box.count)
        elif self._distance.add(a, b):
            self._changed += 1

    def result(self, tensor: TensorDiff) -> TensorDiff:
        if self._problem is not None:
            return replace(tensor, kind="damaged", problem=self._problem)
        if not self._distance.changed:
            return replace(tensor, kind="same")
        known = is_number(self._distance.dtype)
        change = TensorChange(
            chunks=self._chunks,
            chunks_changed=self._changed,
            elements=self._distance.elements,
            elements_changed=self._distance.changed,
            not_finite=self._distance.not_finite,
            max_abs=self._distance.max_abs if known else None,
            relative_l2=self._distance.relative_l2 if known else None,
        )
        return replace(tensor, change=change)
