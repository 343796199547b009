"""Copies cells of tensors, bit for bit, into memory that was laid out for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpointing.distributed_classes import is_dtensor
from checkpointing.format.tiles import Box
from checkpointing.torch_internals import foreach_copy

Copy = Callable[[Sequence[Tensor], Sequence[Tensor]], None]  # targets, sources

# bytes below which torch's loop over many tensors costs less than a call of numpy for each
_SMALL = 64 << 10
# as bool, bytes other than 0 and 1 could become 1; torch 2.9 cannot copy float4
_AS_BYTES = (torch.bool, getattr(torch, "float4_e2m1fn_x2", torch.bool))
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def cells_of(tensor: Tensor, box: Box | None = None) -> Tensor:
    """Returns the cells of a box of a tensor, without a copy.

    Args:
        tensor: a tensor; of a DTensor, this rank's part is used.
        box: in the coordinates of that part; None: all of it.
    """
    held = tensor
    if is_dtensor(tensor):
        with torch.no_grad():
            held = tensor.to_local()
    if box is not None and box.sizes != held.shape:
        with torch.no_grad():
            held = held[box.slices]
    return held.detach().view(torch.uint8) if held.dtype in _AS_BYTES else held


def place_for(memory: NDArray[np.uint8], offset: int, cells: Tensor) -> Tensor:
    """Returns a tensor at `offset` bytes of `memory`, in C order, into which `cells` can be
    copied."""
    there = torch.from_numpy(memory[offset : offset + cells.numel() * cells.element_size()])
    return there.view(cells.dtype).view(cells.shape)


def copy(
    targets: Sequence[Tensor], sources: Sequence[Tensor], *, non_blocking: bool = False
) -> None:
    """Copy with torch's threads, without a call from Python for every tensor."""
    if targets:
        with torch.no_grad():
            foreach_copy(targets, sources, non_blocking=non_blocking)


def copy_quietly(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy in this thread only, which holds the GIL for a small part of the time: more threads
    would take cores from the trainer."""
    few: list[tuple[Tensor, Tensor]] = []
    for target, source in zip(targets, sources, strict=True):
        if target.nbytes < _SMALL:
            few.append((target, source))
        elif source.is_cpu and not (source.is_conj() or source.is_neg()):
            np.copyto(_bits(target), _bits(source))
        else:
            copy([target], [source])
    copy([target for target, _ in few], [source for _, source in few])


def _bits(tensor: Tensor) -> NDArray[np.generic]:
    bits = _BITS.get(tensor.element_size())
    held = tensor.detach()
    array: NDArray[np.generic] = (held if bits is None else held.view(bits)).numpy()
    return array
