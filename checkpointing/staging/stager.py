"""Snapshots of a rank's part of the state, in shared memory that is kept from save to save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from checkpointing.errors import StageError
from checkpointing.format.replica_differences import NOT_TAKEN
from checkpointing.format.tiles import Box, Shape
from checkpointing.format.torch_dtypes import dtype_name
from checkpointing.staging import host_memory
from checkpointing.staging.arena import Arena
from checkpointing.staging.fingerprints import TensorSample, fingerprint
from checkpointing.staging.overlap_guard import StepHooks, Versions, is_counted
from checkpointing.staging.overlapped_copy import Overlap
from checkpointing.staging.pinned_memory import DeviceCopy
from checkpointing.staging.slot_layout import PAGE, SlotEntry, StagedSnapshot, layout, round_up
from checkpointing.staging.slot_memory import SlotMemory, by_device, copy_all, pick
from checkpointing.staging.tensor_copy import Copy, cells_of, copy, copy_quietly, place_for

_STRIDES = {64 << 20: 1, 128 << 20: 5, 256 << 20: 9, 512 << 20: 17}
_LONGEST = 33
"""Of the pieces of what is copied beside the trainer, by its bytes, one in so many is read when
`save` is called, and compared with the copy. This takes 2 to 4 ms up to 512 MiB on two cores, and
of more bytes well below a tenth of what a bare copy takes."""

Require = Callable[[int, int], None]  # bytes of a slot, slots; raises StageError

# bytes from which on numpy asks for huge pages, and torch does not: fresh memory of them is filled
# in a third of the time
_LARGE = 4 << 20
_ALIGNED = 64  # bytes, of a line of the processor's cache
_SMALL, _MOST_SMALL = 64 << 10, 64 << 20
"""Bytes below which `save` copies a tensor before it returns, and the most of all such tensors."""
_LIGHT = 65  # as STRIDE, of what is not copied, and only compared with other ranks' replicas


@dataclass(frozen=True)
class StagePiece:
    """Cells that this rank stages.

    Attributes:
        name: of the tensor; several pieces may be boxes of one.
        tensor: the live one; of a DTensor, this rank's part.
        box: what of it to stage, in its own coordinates (of a DTensor: in its local ones); None:
            all.
        shape: of the whole tensor that it is a part of, and
        offsets: where the box begins in that; None: it is no part. Buckets are cut by them.
    """

    name: str
    tensor: Tensor
    box: Box | None = None
    shape: Shape | None = None
    offsets: Shape | None = None


@dataclass(frozen=True)
class ComparedCells:
    """Cells that other ranks hold too, whose fingerprint is taken.

    Attributes:
        tensor: the live one that they are cells of.
        is_early: they may change as soon as `save` returns.
    """

    name: str
    tensor: Tensor
    cells: Sequence[Tensor]
    is_early: bool


def cells(pieces: Iterable[StagePiece]) -> list[Tensor]:
    """What the pieces refer to, without a copy."""
    return [cells_of(piece.tensor, piece.box) for piece in pieces]


class Stager:
    """Copies pieces into slots of an arena. For one thread, the one that trains.

    Who fills a slot again must know that nobody reads it any more.

    Args:
        slots: snapshots that can be held at a time.
        optimizers: whose steps wait for a copy that is under way.
        require: called with the bytes of a slot and the number of slots before memory is taken;
            raises StageError if there is not enough. Ranks that share a node should ask together:
            see `hostmemory.require`.
        copy_later: how the CPU copies beside the trainer.
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
            raise ValueError(f"Stager(slots=) needs a number >= 1, got {slots!r}")
        self.slots = slots
        self.slot_bytes = 0  # a multiple of the page
        self.arenas = 0  # made so far: the number of the present one
        self._require, self._copy_later = require, copy_later
        self._memory: SlotMemory | None = None
        self._structure: Sequence[tuple[str, torch.dtype, Shape, bool]] | None = None
        self._entries: tuple[SlotEntry, ...] = ()
        self._targets: list[list[Tensor]] = []  # by slot
        self._bytes = 0
        self._overlap: Overlap | None = None
        self._overlaps = 0  # so far
        self._pool = ThreadPoolExecutor(1, "stage")
        self._hooks = StepHooks(optimizers, self._before_step)

    @property
    def arena(self) -> Arena:
        """The present memory. Slot i begins at i * slot_bytes.

        Raises:
            StageError: nothing was prepared yet.
        """
        if self._memory is None:
            raise StageError("there is no arena yet: call prepare() first")
        return self._memory.arena

    def prepare(self, pieces: Sequence[StagePiece]) -> bool:
        """Get ready for pieces like these, in this order: a later `stage` of them takes no memory.

        Returns:
            Whether the arena is a new one, because a slot of the one before was too small. The old
            one is closed here; who else holds it keeps what is in it.

        Raises:
            StageError: there is not enough memory; the old arena is gone then.
        """
        self.settle()
        return self._prepare(pieces, cells(pieces))

    def stage(self, pieces: Sequence[StagePiece], slot: int = 0) -> StagedSnapshot:
        """Copy the pieces into a slot; complete on return. Prepares for them if need be.

        Raises:
            StageError: as `prepare`.
            ValueError: there is no such slot.
        """
        self.settle()
        sources = cells(pieces)
        targets = self._targets_for(pieces, sources, slot)
        copy_all(targets, sources)
        return self._staged(slot)

    def stage_overlapped(
        self,
        now: Sequence[StagePiece],
        later: Sequence[StagePiece],
        slot: int = 0,
        compared: Sequence[ComparedCells] = (),
    ) -> Overlap:
        """Copy `now` before returning, and `later` while training goes on; the entries are those
        of both, in this order.

        Until the optimizers' next step, nothing may write to what `later` refers to. Who does is
        found out, and the snapshot is not used: by torch's count of changes, and by what each large
        tensor was like at the time of the call, or a sample of it. What is small is copied before
        returning, too.

        Args:
            now: what forward and backward may change: buffers, and whatever else is no parameter.
            later: parameters, and the state of the optimizers.
            compared: what to take fingerprints of, before the next step.

        Raises: as `stage`.
        """
        self.settle()
        pieces = [*now, *later]
        sources = cells(pieces)
        targets = self._targets_for(pieces, sources, slot)
        is_first = [True] * len(now) + _at_once(later, sources[len(now) :])
        is_rest = [not first for first in is_first]
        names = [piece.name for piece, is_late in zip(pieces, is_rest, strict=True) if is_late]
        rest = pick(targets, sources, is_rest)
        versions = Versions(
            (piece.name, piece.tensor)
            for piece, is_late in zip(pieces, is_rest, strict=True)
            if is_late
        )
        self._overlaps += 1
        on_device, in_host = by_device(*rest)
        stride = stride_for(sum(one.nbytes for one in in_host[1]))
        sample = TensorSample(in_host[1], stride, self._overlaps) if in_host[0] else None
        prints = ReplicaFingerprints(compared, self._overlaps)
        copy_all(*pick(targets, sources, is_first))
        copying = self._pool.submit(self._copy_later, *in_host) if in_host[0] else None
        taking = self._pool.submit(prints.take) if compared else None
        hosted = [name for name, one in zip(names, rest[1], strict=True) if not one.is_cuda]
        there = [name for name, one in zip(names, rest[1], strict=True) if one.is_cuda]
        self._overlap = Overlap(
            self._staged(slot),
            versions,
            copying,
            DeviceCopy(*on_device, there) if on_device[0] else None,
            taking,
            self._pool.submit(_torn, sample, in_host[0], hosted) if sample is not None else None,
        )
        return self._overlap

    def watch(self, optimizers: Iterable[Optimizer]) -> None:
        """Let the steps of these optimizers wait from now on, and of no others."""
        self._hooks.close()
        self._hooks = StepHooks(optimizers, self._before_step)

    def adopt(self, arena: Arena, slot_bytes: int) -> None:
        """Begin with this memory, which has as many slots, and content that is to stay for now."""
        self._memory = SlotMemory(arena.size, slot_bytes, arena)
        self.slot_bytes = slot_bytes
        self.arenas += 1

    def await_memory(self, slot: int = 0) -> None:
        """Return when the memory of a slot, and of those before it, is there: it is taken beside
        the trainer.

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
        """Settle, remove the hooks and let go of the memory; a second time does nothing."""
        self._hooks.close()
        self.settle()
        self._pool.shutdown()
        self._forget()

    def _before_step(self) -> None:
        if self._overlap is not None:
            self._overlap.before_step()

    def _targets_for(
        self, pieces: Sequence[StagePiece], sources: list[Tensor], slot: int
    ) -> list[Tensor]:
        if not 0 <= slot < self.slots:
            raise ValueError(f"there is no slot {slot}: they are 0 to {self.slots - 1}")
        self._prepare(pieces, sources)
        self.await_memory(slot)
        return self._targets[slot]

    def _prepare(self, pieces: Sequence[StagePiece], sources: list[Tensor]) -> bool:
        structure = [
            (piece.name, piece.tensor.dtype, source.shape, source.is_cuda)
            for piece, source in zip(pieces, sources, strict=True)
        ]
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
        """New memory, once the old one is given back."""
        self._forget()
        self._require(slot_bytes, self.slots)
        self._memory = SlotMemory(slot_bytes * self.slots, slot_bytes)
        self.slot_bytes = slot_bytes
        self.arenas += 1

    def _places(self, slot: int, offsets: Sequence[int], sources: Sequence[Tensor]) -> list[Tensor]:
        memory = self.arena.view(slot * self.slot_bytes, self.slot_bytes)
        pairs = zip(offsets, sources, strict=True)
        return [place_for(memory, offset, source) for offset, source in pairs]

    def _staged(self, slot: int) -> StagedSnapshot:
        return StagedSnapshot(self.arenas, slot, slot * self.slot_bytes, self._entries, self._bytes)

    def _forget(self) -> None:
        self._structure, self._entries, self._targets = None, (), []
        memory, self._memory, self.slot_bytes = self._memory, None, 0
        if memory is not None:
            memory.close()


class ReplicaFingerprints:
    """The fingerprints of what is compared with other ranks' replicas, in its order."""

    def __init__(self, compared: Sequence[ComparedCells], phase: int = 0) -> None:
        """Take those of what may change at once."""
        self._found = [fingerprint(one.cells) if one.is_early else NOT_TAKEN for one in compared]
        late = [number for number, one in enumerate(compared) if not one.is_early]
        self._late = {number: compared[number].cells for number in late}
        self._versions = Versions(
            (str(number), compared[number].tensor)
            for number in late
            if is_counted(compared[number].tensor)
        )
        flat = [
            (number, one)
            for number in late
            for one in compared[number].cells
            if one.is_cpu and one.is_contiguous() and one.nbytes > _SMALL
        ]
        self._owners, self._sampled = [number for number, _ in flat], [one for _, one in flat]
        self._sample = TensorSample(self._sampled, _LIGHT, phase)

    def take(self) -> list[int]:
        """Those of the rest; `NOT_TAKEN` of what something has written to since."""
        for number, held in self._late.items():
            self._found[number] = fingerprint(held)
        changed = {self._owners[i] for i in self._sample.changed(self._sampled)}
        for number in changed | set(map(int, self._versions.changed())):
            self._found[number] = NOT_TAKEN
        return self._found


class StagingBuffers:
    """One set of buffers; whoever fills it again must know that nobody reads it any more."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._lent: NDArray[np.uint8] = np.empty(0, np.uint8)  # what is left of it

    def lend(self, memory: NDArray[np.uint8]) -> None:
        """Make buffers of this memory as far as it goes, until `release`."""
        self._lent = memory

    def buffers(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """CPU tensors like `tensors` (DTensors keep mesh and placements), content undefined."""
        self._buffers = {name: self._buffer(name, local(t)) for name, t in tensors.items()}
        return {name: _like(t, self._buffers[name]) for name, t in tensors.items()}

    def copy_back(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy what the buffers hold into the live `tensors` of the same names."""
        targets = [cells_of(tensor) for tensor in tensors.values()]
        copy(targets, [cells_of(self._buffers[name]) for name in tensors], non_blocking=True)
        _finish_copies(tensors)

    def release(self) -> None:
        """Give the buffers back, and what was lent."""
        self._buffers, self._lent = {}, np.empty(0, np.uint8)

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        held = self._buffers.get(name)
        if held is not None and held.shape == like.shape and held.dtype == like.dtype:
            return held
        size = round_up(like.nbytes, _ALIGNED)
        if 0 < size <= self._lent.size:
            mine, self._lent = self._lent[: like.nbytes], self._lent[size:]
            return torch.from_numpy(mine).view(like.dtype).view(like.shape)
        if like.is_cuda or like.nbytes < _LARGE:
            return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
        memory = np.empty(like.nbytes, np.uint8)
        return torch.from_numpy(memory).view(like.dtype).view(like.shape)


def stride_for(nbytes: int) -> int:
    """Of how many pieces one is read, of so many bytes that are copied beside the trainer."""
    return next((stride for most, stride in _STRIDES.items() if nbytes <= most), _LONGEST)


def take_fingerprints(compared: Sequence[ComparedCells]) -> list[int]:
    """At once, in their order."""
    return [fingerprint(one.cells) for one in compared]


def _at_once(pieces: Sequence[StagePiece], sources: Sequence[Tensor]) -> list[bool]:
    """Whether each is copied before the trainer goes on: what is small, while there is little of
    it; what torch counts no changes of, such as inference tensors; and what has no order of bytes
    in common with its copy."""
    found, left = [], _MOST_SMALL
    for piece, source in zip(pieces, sources, strict=True):
        is_small = source.is_cpu and source.nbytes < _SMALL and source.nbytes <= left
        left -= source.nbytes if is_small else 0
        has_order = source.is_cuda or (source.is_cpu and source.is_contiguous())
        lazy = source.is_conj() or source.is_neg()
        found.append(is_small or lazy or not has_order or not is_counted(piece.tensor))
    return found


def _torn(sample: TensorSample, targets: Sequence[Tensor], names: Sequence[str]) -> list[str]:
    """Of which tensors the copy is not what they were when `sample` was taken."""
    return [names[i] for i in sample.changed(targets)]


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    with torch.no_grad():
        return tensor.to_local()


def _like(tensor: Tensor, buffer: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return buffer
    # the constructor, because from_local() would move the buffer to the mesh's device
    return DTensor(buffer, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _finish_copies(tensors: Mapping[str, Tensor]) -> None:
    for device in {t.device for t in tensors.values() if t.is_cuda}:
        torch.cuda.synchronize(device)
