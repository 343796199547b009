"""Stages snapshots of a rank's part of the state in shared memory that is kept from save to
save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from checkpointing.errors import StageError
from checkpointing.format.tiles import Box, Shape
from checkpointing.format.torch_dtypes import dtype_name
from checkpointing.staging import host_memory
from checkpointing.staging.arena import Arena
from checkpointing.staging.fingerprints import SampleMemory, TensorSample
from checkpointing.staging.overlap_guard import StepHooks, Versions, is_counted
from checkpointing.staging.overlapped_copy import Overlap
from checkpointing.staging.pinned_memory import DeviceCopy
from checkpointing.staging.replica_fingerprints import (
    SMALL_BYTES,
    ComparedCells,
    ReplicaFingerprints,
)
from checkpointing.staging.slot_layout import (
    PAGE,
    SlotEntry,
    StagedSnapshot,
    layout,
)
from checkpointing.staging.slot_memory import Pairs, SlotMemory, copy_all
from checkpointing.staging.tensor_copy import Copy, cells_of, copy_quietly, places_for

_STRIDES = {64 << 20: 1, 128 << 20: 33, 256 << 20: 65, 512 << 20: 129}
_LARGEST_STRIDE = 265
"""Of the pieces of 128 bytes that are copied while training continues, one in so many (by total
size) is read when `save` is called, and compared with the copy. For 0.6 GB this takes 1.6 ms of one
core, and less where the thread that copies has a core to help
(`benchmarks.checkpoint.staging_stall` measures it)."""

Require = Callable[[int, int], None]  # bytes of a slot, slots; raises StageError

_MOST_SMALL = 64 << 20
"""Bytes of small tensors that are copied before `save` returns."""


class StagePiece(NamedTuple):  # made for each tensor at each save
    """A box of a tensor that this rank stages.

    Attributes:
        name: name of the tensor; several pieces may be boxes of one tensor.
        tensor: the live tensor; for a DTensor, this rank's part.
        box: what to stage of it, in its own coordinates (of a DTensor, local ones); None: all.
        shape: shape of the whole tensor, by which buckets are cut; None: it is not a part.
        offsets: where the box begins in the whole tensor; None: it is not a part.
    """

    name: str
    tensor: Tensor
    box: Box | None = None
    shape: Shape | None = None
    offsets: Shape | None = None


class _Structure(NamedTuple):
    """What the places of pieces depend on, by piece; in columns, which are made and compared
    sooner than rows."""

    names: list[str]
    dtypes: list[torch.dtype]
    shapes: list[torch.Size]
    on_device: list[bool]


@dataclass(frozen=True)
class StateSample:
    """What was read of a state before a copy beside training.

    Attributes:
        entries: where the pieces lie in a slot.
        names, sources: the names and the cells of the pieces.
        first: indices of the pieces that are copied before training continues.
        in_host, on_device: indices of the others, which the CPU copies, and CUDA devices.
        versions: version counters of the others.
        content: sampled content of what is `in_host`; None: there is none.
        prints: fingerprints of what other ranks also hold; None: nothing is compared.
    """

    entries: tuple[SlotEntry, ...]
    names: Sequence[str]
    sources: list[Tensor]
    first: Sequence[int]
    in_host: Sequence[int]
    on_device: Sequence[int]
    versions: Versions
    content: TensorSample | None
    prints: ReplicaFingerprints | None


def cells(pieces: Iterable[StagePiece]) -> list[Tensor]:
    """Returns views of the cells that the pieces refer to."""
    return [cells_of(tensor, box) for _, tensor, box, _, _ in pieces]


class Stager:
    """Copies pieces into slots of an arena. Used by the training thread only.

    The caller must make sure that no process reads a slot that it fills again.

    Args:
        slots: number of snapshots that can be held at a time.
        optimizers: optimizers whose steps wait for a copy that is under way.
        require: called with the bytes of a slot and the number of slots before memory is taken;
            raises StageError if there is not enough. Ranks that share a node should ask together:
            see `host_memory.require`.
        copy_later: function with which the CPU copies while training continues.
    """

    def __init__(
        self,
        slots: int = 2,
        *,
        optimizers: Iterable[Optimizer] = (),
        require: Require = host_memory.require,
        copy_later: Copy = copy_quietly,
    ) -> None:
        if slots < 1:
            raise ValueError(f"Stager(slots=) must be a number >= 1, got {slots!r}")
        self.slots = slots
        self.slot_bytes = 0  # a multiple of the page size
        self.arenas = 0  # number of the present arena, counted from 1
        self._require, self._copy_later = require, copy_later
        self._memory: SlotMemory | None = None
        self._structure: _Structure | None = None
        self._entries: tuple[SlotEntry, ...] = ()
        self._targets: list[list[Tensor]] = []  # by slot
        self._bytes = 0
        self._overlap: Overlap | None = None
        self._overlaps = 0  # number of overlapped copies so far
        self._pool = ThreadPoolExecutor(1, "stage")
        self._sample_memory = SampleMemory()
        self._hooks = StepHooks(optimizers, self._before_step)

    @property
    def arena(self) -> Arena:
        """The present arena. Slot i begins at i * slot_bytes.

        Raises:
            StageError: nothing was prepared yet.
        """
        if self._memory is None:
            raise StageError("there is no arena yet: call prepare() first")
        return self._memory.arena

    def prepare(self, pieces: Sequence[StagePiece]) -> bool:
        """Allocate the memory for pieces like these, in this order, so that a later `stage` of them
        takes none.

        Returns:
            Whether the arena is a new one, because a slot of the previous one was too small. The
            old one is closed here; its content remains for other processes that map it.

        Raises:
            StageError: there is not enough memory; the old arena is released even then.
        """
        self.settle()
        return self._prepare(pieces, cells(pieces))

    def stage(self, pieces: Sequence[StagePiece], slot: int = 0) -> StagedSnapshot:
        """Copy the pieces into a slot; complete on return. Calls `prepare` if needed.

        Raises:
            StageError: as for `prepare`.
            ValueError: there is no such slot.
        """
        self.settle()
        sources = cells(pieces)
        self._prepare(pieces, sources)
        copy_all(self._targets_of(slot), sources)
        return self._staged(slot)

    def stage_overlapped(
        self,
        now: Sequence[StagePiece],
        later: Sequence[StagePiece],
        slot: int = 0,
        compared: Sequence[ComparedCells] = (),
    ) -> Overlap:
        """Copy `now` before returning, and `later` while training continues; the entries are those
        of both, in this order.

        Until the optimizers' next step, nothing may write to what `later` refers to. A write is
        detected by torch's version counters and by comparing each large tensor, or a sample of it,
        with its content at the time of the call; the snapshot is then not used. Small tensors are
        copied before returning, too.

        Args:
            now: tensors that forward and backward may change: buffers, and all others that are no
                parameters.
            later: parameters, and the state of the optimizers.
            compared: cells of which to take fingerprints before the next step.

        Raises: as `stage`.
        """
        return self.stage_sampled(self.sample(now, later, compared), slot)

    def sample(
        self,
        now: Sequence[StagePiece],
        later: Sequence[StagePiece],
        compared: Sequence[ComparedCells] = (),
    ) -> StateSample:
        """Read what is needed to detect writes beside a copy: the first part of `stage_overlapped`,
        which needs no slot yet. Nothing may write to the tensors before `stage_sampled` returns.

        Content is read after all else that looks at the tensors: it leaves nothing in the caches.

        Raises:
            StageError: as for `prepare`.
        """
        self.settle()
        pieces = [*now, *later]
        sources = cells(pieces)
        self._prepare(pieces, sources)
        is_first = [True] * len(now) + _at_once(later, sources[len(now) :])
        first = [at for at, is_early in enumerate(is_first) if is_early]
        rest = [at for at, is_early in enumerate(is_first) if not is_early]
        versions = Versions([pieces[at][:2] for at in rest])
        self._overlaps += 1
        on_device = [at for at in rest if sources[at].is_cuda]
        in_host = [at for at in rest if not sources[at].is_cuda] if on_device else rest
        names = [piece.name for piece in pieces]
        content = self._sample_content([sources[at] for at in in_host]) if in_host else None
        prints = ReplicaFingerprints(compared, self._overlaps, self._pool) if compared else None
        return StateSample(
            self._entries, names, sources, first, in_host, on_device, versions, content, prints
        )

    def _sample_content(self, sources: Sequence[Tensor]) -> TensorSample:
        stride = stride_for(sum(one.nbytes for one in sources))
        return TensorSample(sources, stride, self._overlaps, self._pool, self._sample_memory)

    def stage_sampled(self, sample: StateSample, slot: int = 0) -> Overlap:
        """Copy what was sampled last: the second part of `stage_overlapped`.

        Raises:
            StageError: the memory cannot be allocated.
            ValueError: there is no such slot, or other pieces were prepared since.
        """
        if sample.entries is not self._entries:
            raise ValueError("other pieces were prepared after these were sampled: sample again")
        targets = self._targets_of(slot)
        copy_all(*_at(sample.first, targets, sample.sources))
        in_host = _at(sample.in_host, targets, sample.sources)
        on_device = _at(sample.on_device, targets, sample.sources)
        copying = self._pool.submit(self._copy_later, *in_host) if sample.in_host else None
        prints, content = sample.prints, sample.content
        hosted = [sample.names[at] for at in sample.in_host]
        there = [sample.names[at] for at in sample.on_device]
        self._overlap = Overlap(
            self._staged(slot),
            sample.versions,
            copying,
            DeviceCopy(*on_device, there) if sample.on_device else None,
            self._pool.submit(prints.take) if prints is not None else None,
            self._begin_check(content, in_host[0], hosted) if content is not None else None,
        )
        return self._overlap

    def _begin_check(
        self, content: TensorSample, targets: Sequence[Tensor], names: Sequence[str]
    ) -> Future[list[str]]:
        """Compare the copies with the sample once they are made."""
        checking = self._pool.submit(_torn, content, targets, names)
        self._sample_memory.note_user(checking)
        return checking

    def watch(self, optimizers: Iterable[Optimizer]) -> None:
        """Make the steps of these optimizers, and of no others, wait for copies from now on."""
        self._hooks.close()
        self._hooks = StepHooks(optimizers, self._before_step)

    def reuse_arena(self, arena: Arena, slot_bytes: int) -> None:
        """Begin with this memory, which has as many slots and whose content must be kept for
        now."""
        self._memory = SlotMemory(arena.size, arena)
        self.slot_bytes = slot_bytes
        self.arenas += 1

    @property
    def is_pinned(self) -> bool:
        """Whether devices copy to and from the arena directly."""
        return self._memory is not None and self._memory.is_pinned

    def begin_allocation(self) -> None:
        """Allocate the memory of all slots in the background from now on.

        Raises:
            StageError: nothing was prepared yet.
        """
        if self._memory is None:
            raise StageError("there is no arena yet: call prepare() first")
        self._memory.begin_allocation()

    def await_memory(self, slot: int = 0) -> None:
        """Block until the memory of a slot, and of those before it, is allocated, which a
        background thread does.

        Raises:
            StageError: there is not enough, or nothing was prepared yet.
        """
        if self._memory is None:
            raise StageError("there is no arena yet: call prepare() first")
        self._memory.await_memory((slot + 1) * self.slot_bytes)

    def settle(self) -> None:
        """Wait until an overlapped copy that is under way has ended."""
        overlap, self._overlap = self._overlap, None
        if overlap is not None:
            overlap.settle()

    def close(self) -> None:
        """Settle, remove the hooks and release the memory; a second call does nothing."""
        self._hooks.close()
        self.settle()
        self._pool.shutdown()
        self._sample_memory = SampleMemory()
        self._forget()

    def _before_step(self) -> None:
        if self._overlap is not None:
            self._overlap.before_step()

    def _targets_of(self, slot: int) -> list[Tensor]:
        """Returns the places in a slot of the pieces that were prepared last."""
        if not 0 <= slot < self.slots:
            raise ValueError(f"there is no slot {slot}: they are 0 to {self.slots - 1}")
        self.await_memory(slot)
        return self._targets[slot]

    def _prepare(self, pieces: Sequence[StagePiece], sources: list[Tensor]) -> bool:
        structure = _Structure(
            [piece.name for piece in pieces],
            [piece.tensor.dtype for piece in pieces],
            [source.shape for source in sources],
            [source.is_cuda for source in sources],
        )
        if structure == self._structure:
            return False
        sizes = [source.nbytes for source in sources]
        offsets, total = layout(sizes)
        self._structure = None
        is_new = self._memory is None or total > self.slot_bytes
        if is_new:
            self._take(max(total, PAGE))
        assert self._memory is not None
        if any(source.is_cuda for source in sources):
            self._memory.pin()
        self._entries = tuple(
            SlotEntry(piece.name, dtype_name(piece.tensor.dtype), tuple(source.shape), offset)
            for piece, source, offset in zip(pieces, sources, offsets, strict=True)
        )
        self._targets = [self._places(slot, offsets, sources) for slot in range(self.slots)]
        self._structure, self._bytes = structure, sum(sizes)
        return is_new

    def _take(self, slot_bytes: int) -> None:
        """Allocate new memory, after the old one is released."""
        self._forget()
        self._require(slot_bytes, self.slots)
        self._memory = SlotMemory(slot_bytes * self.slots)
        self.slot_bytes = slot_bytes
        self.arenas += 1

    def _places(self, slot: int, offsets: Sequence[int], sources: Sequence[Tensor]) -> list[Tensor]:
        memory = self.arena.view(slot * self.slot_bytes, self.slot_bytes)
        return places_for(memory, offsets, sources)

    def _staged(self, slot: int) -> StagedSnapshot:
        return StagedSnapshot(self.arenas, slot, slot * self.slot_bytes, self._entries, self._bytes)

    def _forget(self) -> None:
        self._structure, self._entries, self._targets = None, (), []
        memory, self._memory, self.slot_bytes = self._memory, None, 0
        if memory is not None:
            memory.close()


def stride_for(nbytes: int) -> int:
    """Returns the stride of the sample for so many bytes, copied while training continues."""
    return next((stride for most, stride in _STRIDES.items() if nbytes <= most), _LARGEST_STRIDE)


def _at(indices: Sequence[int], targets: Sequence[Tensor], sources: Sequence[Tensor]) -> Pairs:
    """Returns the pairs at these indices."""
    return [targets[at] for at in indices], [sources[at] for at in indices]


def _at_once(pieces: Sequence[StagePiece], sources: Sequence[Tensor]) -> list[bool]:
    """Whether each tensor is copied before training continues: small ones, up to a total size;
    those of which torch does not count changes, such as inference tensors; and those whose memory
    layout differs from their copy's."""
    found, left = [], _MOST_SMALL
    for piece, source in zip(pieces, sources, strict=True):
        is_cpu = source.is_cpu
        if is_cpu and (size := source.nbytes) < SMALL_BYTES and size <= left:
            left -= size
            found.append(True)
            continue
        has_order = source.is_contiguous() if is_cpu else source.is_cuda
        is_plain = has_order and not (source.is_conj() or source.is_neg())
        found.append(not (is_plain and is_counted(piece.tensor)))
    return found


def _torn(sample: TensorSample, targets: Sequence[Tensor], names: Sequence[str]) -> list[str]:
    """Returns the names of the tensors whose copy differs from what they were when `sample` was
    taken."""
    return [names[i] for i in sample.changed(targets)]
