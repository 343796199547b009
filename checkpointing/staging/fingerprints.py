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
from concurrent.futures import Executor
from contextlib import suppress

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from checkpointing.format.replica_differences import NOT_TAKEN
from checkpointing.format.torch_dtypes import as_bytes

PIECE = 1 << 10
"""Bytes of a piece of a sample."""
WHOLE = 64 << 10
"""Tensors of at most so many bytes are sampled whole."""

_UNIT = 16 << 20  # bytes that one thread reads at a time
_GATHERED = 256 << 10  # bytes of pieces that are hashed together, in the cache of a core
_WORDS = 1 << 24  # words that a device weights at a time
# SplitMix64's, as signed integers
_FACTORS = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64))
_SHIFT = 31


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
    words = content.view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=cells.device)
    for start in range(0, words.numel(), _WORDS):
        piece = words[start : start + _WORDS].to(torch.int64)
        place = torch.arange(start + 1, start + 1 + piece.numel(), device=cells.device)
        weights = place * _FACTORS[0]
        weights = ((weights ^ (weights >> _SHIFT)) * _FACTORS[1]) | 1
        total = total + (piece * weights).sum()
    return total


def combine_fingerprints(parts: Sequence[Tensor]) -> int:
    """Combines the results of `device_fingerprint` for the tensors of one entry into one number."""
    whole = 0
    for number, part in enumerate(parts):
        whole += int(part) * (2 * number + 1)
    return whole % (1 << 64) or NOT_TAKEN + 1


class TensorSample:
    """The content of CPU tensors at one moment, sampled by one of every `stride` pieces of 1 KiB. A
    write that changes everything in a tensor is always detected, and so is one to `stride + 1` KiB
    in a row; a write to a single piece is detected by one of `stride` samples in a row."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        stride: int,
        phase: int = 0,
        helper: Executor | None = None,
    ) -> None:
        """
        Args:
            tensors: contiguous CPU tensors.
            stride: one piece in so many is read, and the first one of every tensor; 1: all are
                read. An odd number, because columns of most matrices are a power of 2 apart, and
                would all be read or none.
            phase: which of the pieces, so that others are read next time.
            helper: a thread that is running already and reads a part of it, if it gets to it.
        """
        self._stride, self._phase = stride, phase % stride
        self._content = self._read(tensors, helper)

    def changed(self, tensors: Sequence[Tensor]) -> list[int]:
        """Returns the indices of those of these tensors, which have the same number and sizes,
        whose sampled content has changed."""
        now = self._read(tensors)
        return [i for i, (a, b) in enumerate(zip(self._content, now, strict=True)) if a != b]

    def _read(self, tensors: Sequence[Tensor], helper: Executor | None = None) -> list[list[int]]:
        views = [as_bytes(tensor) if tensor.numel() else memoryview(b"") for tensor in tensors]
        units = [
            (number, view[start : start + _UNIT])
            for number, view in enumerate(views)
            for start in range(0, view.nbytes, _UNIT)
        ]
        found: list[list[int]] = [[] for _ in tensors]
        for (number, _), digest in zip(units, self._digests(units, helper), strict=True):
            found[number].append(digest)
        return found

    def _digests(
        self, units: Sequence[tuple[int, memoryview]], helper: Executor | None
    ) -> list[int]:
        left, found = deque(range(len(units))), dict[int, int]()

        def read(numbers: Iterable[int]) -> None:
            room = np.empty((_GATHERED // PIECE, PIECE), np.uint8)
            for number in numbers:
                found[number] = self._digest(units[number][1], room)

        if helper is not None:
            helper.submit(read, _taken(left.pop))
        read(_taken(left.popleft))
        # This thread does not wait for the other one, which may not be running at the moment.
        read([number for number in range(len(units)) if number not in found])
        return [found[number] for number in range(len(units))]

    def _digest(self, view: memoryview, room: NDArray[np.uint8]) -> int:
        """Returns the digest of what is sampled of a unit, whose pieces are gathered in `room`."""
        if self._stride == 1 or view.nbytes <= max(WHOLE, self._stride * PIECE):
            return xxhash.xxh3_64_intdigest(view)
        blocks = view.nbytes // (PIECE * self._stride)
        size = blocks * PIECE * self._stride
        pieces = np.frombuffer(view[:size], np.uint8).reshape(blocks, self._stride, PIECE)
        chosen = pieces[:, self._phase]
        hasher = xxhash.xxh3_64(view[:PIECE])
        for start in range(0, blocks, len(room)):
            some = chosen[start : start + len(room)]
            np.copyto(room[: len(some)], some)  # without the GIL, unlike tobytes()
            hasher.update(room[: len(some)].data)
        hasher.update(view[size:])
        return hasher.intdigest()


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
