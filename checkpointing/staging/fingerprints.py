"""Fingerprints of tensors, which compare replicas and detect writes to tensors that are being
copied.

A fingerprint is an integer of 64 bits that depends on every bit of a tensor and on its position. It
is computed on the tensor's device, so that no bytes are transferred: on the CPU by XXH3
(xxhash.com), at about the speed of memory; on other devices as the sum of all words, each
multiplied by an odd number that depends on its position, modulo 2^64. A single word that differs
always changes that sum: the product of an odd number and a difference that is not 0 modulo 2^64 is
not 0 either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from checkpointing.format.replica_differences import NOT_TAKEN
from checkpointing.format.torch_dtypes import as_bytes, byte_array

PIECE = 128
"""Bytes of a piece of a sample, two lines of the processor's cache. Pieces of 1 KiB at the same
distance take more than three times as long to read."""
WHOLE = 64 << 10
"""Tensors of at most so many bytes are sampled whole."""

_UNIT = 16 << 20  # bytes that one thread reads at a time
_WORDS = 1 << 22  # words that a device weights at a time, for which it takes 64 MiB
# SplitMix64's, as signed integers
_FACTORS = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64))
_SHIFT = 31

_Bytes: TypeAlias = NDArray[np.uint8]
_Kept: TypeAlias = tuple[_Bytes, int]
"""Pieces as they are, uint8[count, PIECE], and the digest of what else was read."""


def fingerprint(cells: Sequence[Tensor]) -> int:
    """Returns the fingerprint of tensors of one device, one after the other, each in C order; never
    `NOT_TAKEN`. Two are equal if shapes, dtypes and bits are equal, on devices of one kind."""
    if all(one.is_cpu for one in cells):
        hasher = xxhash.xxh3_64()
        for one in cells:
            for piece in _pieces(one):
                hasher.update(as_bytes(piece))
        return hasher.intdigest() or NOT_TAKEN + 1
    return combine_fingerprints([device_fingerprint(one) for one in cells])


def device_fingerprint(cells: Tensor) -> Tensor:
    """Returns the fingerprint of one tensor as its device computes it, without waiting for it:
    int64[]."""
    content = _plain(cells).view(-1).view(torch.uint8)
    if rest := content.numel() % 4:
        content = torch.nn.functional.pad(content, (0, 4 - rest))
    elif content.storage_offset() % 4:  # a view into a larger tensor of smaller elements
        content = content.clone()
    words = content.view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=cells.device)
    for start in range(0, words.numel(), _WORDS):
        piece = words[start : start + _WORDS]
        # in place, since the memory is the training's: two numbers of 8 bytes for each word
        product = torch.arange(start + 1, start + 1 + piece.numel(), device=cells.device)
        product *= _FACTORS[0]
        product ^= product >> _SHIFT
        product *= _FACTORS[1]
        product |= 1
        product *= piece
        total += product.sum()
    return total


def combine_fingerprints(parts: Sequence[Tensor]) -> int:
    """Combines the results of `device_fingerprint` for the tensors of one entry into one number."""
    whole = 0
    for number, part in enumerate(parts):
        whole += int(part) * (2 * number + 1)
    return whole % (1 << 64) or NOT_TAKEN + 1


class SampleMemory:
    """Memory for the gathered pieces of one sample at a time, which is kept from save to save: to
    allocate it takes longer than to read the sample."""

    def __init__(self) -> None:
        self._room = np.empty((0, PIECE), np.uint8)
        self._counts: list[int] = []
        self._places: list[_Bytes] = []
        self._users: list[Future[Any]] = []

    def take(self, counts: list[int]) -> list[_Bytes]:
        """Returns room for so many pieces of each unit, uint8[count, PIECE], the same as before,
        once all users of the sample before have ended. They have long since, unless its save was
        skipped or interrupted."""
        wait(self._users)
        self._users.clear()
        if counts != self._counts:
            if len(self._room) < sum(counts):
                self._room = np.empty((sum(counts), PIECE), np.uint8)
            ends = list(accumulate(counts))
            self._places = [self._room[e - n : e] for e, n in zip(ends, counts, strict=True)]
            self._counts = counts
        return self._places

    def note_user(self, user: Future[Any]) -> None:
        """Record that the memory is read or written until this has ended."""
        self._users.append(user)


class TensorSample:
    """The content of CPU tensors at one moment, sampled by one of every `stride` pieces of
    128 bytes. A write that changes everything in a tensor is always detected, and so is one to
    `stride + 1` pieces in a row; a write to a single piece is detected by one of `stride` samples
    in a row.

    Pieces are kept as they are, which takes less time than to hash them and `1 / stride` of the
    memory of the tensors; what is read whole is kept as a digest."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        stride: int,
        phase: int = 0,
        helper: Executor | None = None,
        memory: SampleMemory | None = None,
    ) -> None:
        """
        Args:
            tensors: contiguous CPU tensors.
            stride: one piece in so many is read, and the first one of every tensor; 1: all are
                read. An odd number, because columns of most matrices are a power of 2 apart, and
                would all be read or none.
            phase: which of the pieces, so that others are read next time.
            helper: a thread that is running already and reads a part of it, if it gets to it.
            memory: where the pieces are kept; None: in new memory.
        """
        self._stride, self._phase = stride, phase % stride
        self._memory = memory or SampleMemory()
        units = [one for _, one in _units(tensors)]
        places = self._memory.take([self._count_kept(one.nbytes) for one in units])
        self._kept = self._read(units, places, helper)  # by unit

    def changed(self, tensors: Sequence[Tensor]) -> list[int]:
        """Returns the indices of those of these tensors, which have the same number and sizes,
        whose sampled content has changed."""
        pairs = zip(_units(tensors), self._kept, strict=True)
        found = (number for (number, unit), kept in pairs if not self._is_as(unit, kept))
        return list(dict.fromkeys(found))

    def _count_kept(self, size: int) -> int:
        """Returns how many pieces of a unit of `size` bytes are kept as they are."""
        block = self._stride * PIECE
        return 0 if self._stride == 1 or size <= WHOLE or size <= block else size // block

    def _read(
        self, units: Sequence[_Bytes], places: Sequence[_Bytes], helper: Executor | None
    ) -> list[_Kept]:
        # Another thread takes long to get the GIL. So the views, which need it, are made first, and
        # between two copies, which release it, only a digest is computed.
        pieces = [self._pieces(unit, len(place)) for unit, place in zip(units, places, strict=True)]
        left, found = deque(range(len(units))), dict[int, _Kept]()

        def read(numbers: Iterable[int]) -> None:
            for number in numbers:
                found[number] = self._keep(units[number], pieces[number], places[number])

        if helper is not None:
            self._memory.note_user(helper.submit(read, _taken(left.pop)))
        read(_taken(left.popleft))
        # This thread does not wait for the other one, which may not be running at the moment, and
        # may write to its place later.
        for number, unit in enumerate(units):
            if number not in found:
                found[number] = self._keep(unit, pieces[number], np.empty_like(places[number]))
        return [found[number] for number in range(len(units))]

    def _keep(self, unit: _Bytes, pieces: _Bytes, place: _Bytes) -> _Kept:
        """Returns what is sampled of a unit, whose pieces are copied to `place`."""
        np.copyto(place, pieces)  # without the GIL
        return place, self._digest(unit, len(place))

    def _is_as(self, unit: _Bytes, kept: _Kept) -> bool:
        """Returns whether what is sampled of a unit is what was kept of it."""
        place, digest = kept
        if self._digest(unit, len(place)) != digest:
            return False
        return np.array_equal(place, self._pieces(unit, len(place)))

    def _pieces(self, unit: _Bytes, count: int) -> _Bytes:
        """Returns a view of the first `count` of the pieces of a unit that are kept as they are:
        uint8[count, PIECE]."""
        if not count:  # the unit may be smaller than a block
            return unit[:0].reshape(0, PIECE)
        block = self._stride * PIECE
        return np.ndarray((count, PIECE), np.uint8, unit, self._phase * PIECE, (block, 1))

    def _digest(self, unit: _Bytes, count: int) -> int:
        """Returns the digest of what is read besides the first `count` pieces that are kept: the
        first piece, and what follows the last block; all of a unit without such pieces."""
        content = unit.data
        if not count:
            return xxhash.xxh3_64_intdigest(content)
        hasher = xxhash.xxh3_64(content[:PIECE])
        hasher.update(content[count * self._stride * PIECE :])
        return hasher.intdigest()


def _units(tensors: Sequence[Tensor]) -> Iterator[tuple[int, _Bytes]]:
    """Yields the bytes of contiguous CPU tensors in the units in which they are read, each with
    the index of its tensor."""
    for number, tensor in enumerate(tensors):
        content = byte_array(tensor)
        if content.nbytes <= _UNIT:  # most
            if content.nbytes:
                yield number, content
            continue
        for start in range(0, content.nbytes, _UNIT):
            yield number, content[start : start + _UNIT]


def _taken(take: Callable[[], int]) -> Iterator[int]:
    """Yields what `take` returns until it raises IndexError."""
    with suppress(IndexError):
        while True:
            yield take()


def _pieces(cells: Tensor) -> Iterator[Tensor]:
    """Yields contiguous CPU tensors that are `cells` in C order, without copying much at a time."""
    if cells.is_contiguous() or cells.nbytes <= _UNIT or not cells.ndim:
        yield _plain(cells)
        return
    for row in cells.detach():
        yield from _pieces(row)


def _plain(cells: Tensor) -> Tensor:
    return cells.detach().resolve_conj().resolve_neg().contiguous()
