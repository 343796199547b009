"""Buffers that a restore reads into before the live tensors get their content."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpointing.distributed_classes import is_dtensor
from checkpointing.staging.slot_layout import LINE, PAGE, layout, round_up
from checkpointing.staging.tensor_copy import cells_of, copy_quickly
from checkpointing.torch_internals import dtensor_like


class StagingBuffers:
    """One set of buffers for reads; the caller must make sure that nothing reads them before they
    are filled again."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._lent: NDArray[np.uint8] = np.empty(0, np.uint8)  # the rest of the lent memory

    def lend(self, memory: NDArray[np.uint8]) -> None:
        """Allocate buffers from this memory as far as it goes, until `release`."""
        self._lent = memory

    def buffers(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns CPU tensors like `tensors` (DTensors keep mesh and placements), content
        undefined."""
        mine = {name: local(tensor) for name, tensor in tensors.items()}
        found = {n: buffer for n, t in mine.items() if (buffer := self._present(n, t)) is not None}
        missing = {name: tensor for name, tensor in mine.items() if name not in found}
        found |= _together({n: t for n, t in missing.items() if not t.is_cuda})
        for name in missing.keys() - found.keys():
            like = missing[name]
            found[name] = torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
        self._buffers = {name: found[name] for name in mine}
        return {
            n: dtensor_like(t, found[n]) if is_dtensor(t) else found[n] for n, t in tensors.items()
        }

    def copy_back(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the content of the buffers into the live `tensors` of the same names."""
        targets = [cells_of(tensor) for tensor in tensors.values()]
        copy_quickly(targets, [cells_of(self._buffers[name]) for name in tensors])

    def release(self) -> None:
        """Release the buffers and the lent memory."""
        self._buffers, self._lent = {}, np.empty(0, np.uint8)

    def _present(self, name: str, like: Tensor) -> Tensor | None:
        """Returns the buffer of this name, or a part of the lent memory; None if neither is as
        `like`."""
        held = self._buffers.get(name)
        if held is not None and held.shape == like.shape and held.dtype == like.dtype:
            return held
        size = round_up(like.nbytes, LINE)
        if not 0 < size <= self._lent.size:
            return None
        mine, self._lent = self._lent[: like.nbytes], self._lent[size:]
        return torch.from_numpy(mine).view(like.dtype).view(like.shape)


def _together(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns new CPU tensors like these, in one region of memory.

    numpy asks for huge pages for a large one, and torch does not. Memory of that kind is filled in
    a third of the time.
    """
    sizes = [tensor.nbytes for tensor in tensors.values()]
    offsets, total = layout(sizes)
    memory = np.empty(total + PAGE, np.uint8)
    start = -memory.__array_interface__["data"][0] % PAGE
    region = torch.from_numpy(memory[start : start + total])
    ends = [*offsets[1:], total]
    parts = torch.split(region, [end - at for at, end in zip(offsets, ends, strict=False)])
    return {
        name: part[:size].view(like.dtype).view(like.shape)
        for (name, like), part, size in zip(tensors.items(), parts, sizes, strict=True)
    }


def local(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a DTensor; any other tensor itself."""
    if not is_dtensor(tensor):
        return tensor.detach()
    with torch.no_grad():
        return tensor.to_local()
