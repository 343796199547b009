"""CPU copies of the state's local shards, in buffers that are kept from save to save."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from checkpointing.dtypes import copy_bits


class Staging:
    """One set of buffers; whoever fills it again must know that nobody reads it any more."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def buffers(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """CPU tensors like `tensors` (DTensors keep mesh and placements), content undefined."""
        self._buffers = {name: self._buffer(name, local(t)) for name, t in tensors.items()}
        return {name: _like(t, self._buffers[name]) for name, t in tensors.items()}

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """CPU copies of `tensors`: complete on return, safe against changes of the originals."""
        staged = self.buffers(tensors)
        for name, tensor in tensors.items():
            copy_bits(self._buffers[name], local(tensor), non_blocking=True)
        _finish_copies(tensors)
        return staged

    def copy_back(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy what the buffers hold into the live `tensors` of the same names."""
        for name, tensor in tensors.items():
            copy_bits(local(tensor), self._buffers[name], non_blocking=True)
        _finish_copies(tensors)

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        held = self._buffers.get(name)
        if held is not None and held.shape == like.shape and held.dtype == like.dtype:
            return held
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)


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
