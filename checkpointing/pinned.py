"""Copies from CUDA devices into shared memory, beside the work of the devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from checkpointing.arena import Arena

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices of this process


class Pinned:
    """An arena's memory, registered with CUDA: copies into it need no detour and no waiting CPU."""

    def __init__(self, arena: Arena, cuda: Any = torch.cuda) -> None:
        """
        Raises:
            RuntimeError: CUDA refuses, and says why.
        """
        self._cuda = cuda
        self._cells = arena.view(0, arena.size)  # keeps the memory mapped while it is registered
        self._address: int | None = self._cells.ctypes.data
        cuda.check_error(cuda.cudart().cudaHostRegister(self._address, arena.size, _PORTABLE))

    def close(self) -> None:
        """Unregister; no copy may be under way. A second time does nothing."""
        address, self._address = self._address, None
        if address is not None:
            self._cuda.check_error(self._cuda.cudart().cudaHostUnregister(address))
            del self._cells


class DeviceCopy:
    """Copies on a stream of their own, one per device, which begin after the work that the current
    stream was given before. The sources are referred to, hence not reused, until `wait` returns."""

    def __init__(
        self, targets: Sequence[Tensor], sources: Sequence[Tensor], cuda: Any = torch.cuda
    ) -> None:
        self._cuda, self._sources = cuda, list(sources)
        self._ends: dict[torch.device, Any] = {}
        for device in {source.device for source in sources}:
            pairs = zip(targets, sources, strict=True)
            mine = [(target, source) for target, source in pairs if source.device == device]
            self._ends[device] = self._start(device, mine)

    def hold(self) -> None:
        """Let what the current streams are given from now on wait for the copies; the CPU does not
        wait."""
        for device, end in self._ends.items():
            self._cuda.current_stream(device).wait_event(end)

    def wait(self) -> None:
        """Block until all is copied."""
        for end in self._ends.values():
            end.synchronize()
        self._sources.clear()

    def _start(self, device: torch.device, pairs: Sequence[tuple[Tensor, Tensor]]) -> Any:
        stream = self._cuda.Stream(device)  # of a pool: nothing to keep
        stream.wait_stream(self._cuda.current_stream(device))
        with self._cuda.stream(stream), torch.no_grad():
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
        return stream.record_event()
