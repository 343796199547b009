"""Copies from CUDA devices into shared memory while the devices work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from checkpointing.errors import StageError
from checkpointing.staging.arena import Arena
from checkpointing.staging.fingerprints import device_fingerprint
from checkpointing.staging.host_memory import gib

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices of this process


class PinnedArena:
    """An arena's memory that is registered with CUDA, so that devices copy into it directly and
    asynchronously."""

    def __init__(self, arena: Arena, cuda: Any = torch.cuda) -> None:
        """
        Raises:
            StageError: CUDA refuses; the message says why.
        """
        self._cuda = cuda
        self._cells = arena.view(0, arena.size)  # keeps the memory mapped while it is registered
        self._address: int | None = self._cells.ctypes.data
        try:
            cuda.check_error(cuda.cudart().cudaHostRegister(self._address, arena.size, _PORTABLE))
        except RuntimeError as error:
            raise StageError(
                f"CUDA cannot pin {gib(arena.size)} of host memory, into which GPUs copy what is "
                f"saved: {error}; use fewer slots, or staging='buckets'"
            ) from error

    def close(self) -> None:
        """Unregister; no copy may be under way. A second call does nothing."""
        address, self._address = self._address, None
        if address is not None:
            self._cuda.check_error(self._cuda.cudart().cudaHostUnregister(address))
            del self._cells


class DeviceCopy:
    """Copies on separate streams, one per device, which begin after the work that was queued on the
    current stream. The sources are referenced, hence not reused, until `wait` returns."""

    def __init__(
        self,
        targets: Sequence[Tensor],
        sources: Sequence[Tensor],
        names: Sequence[str] = (),
        cuda: Any = torch.cuda,
    ) -> None:
        """
        Args:
            names: names of the sources, for reports of which were written to meanwhile; none: this
                is not checked.
        """
        self._cuda, self._sources = cuda, list(sources)
        self._names = dict(zip(map(id, sources), names, strict=True)) if names else {}
        # by device: names, and whether each source was another one after its copy, in host memory
        self._checks: list[tuple[list[str], Tensor]] = []
        self._ends: dict[torch.device, Any] = {}
        for device in {source.device for source in sources}:
            pairs = zip(targets, sources, strict=True)
            mine = [(target, source) for target, source in pairs if source.device == device]
            self._ends[device] = self._start(device, mine)

    def hold(self) -> None:
        """Make later work on the current streams wait for the copies; the CPU does not wait."""
        for device, end in self._ends.items():
            self._cuda.current_stream(device).wait_event(end)

    def wait(self) -> None:
        """Block until everything is copied."""
        for end in self._ends.values():
            end.synchronize()
        self._sources.clear()

    @property
    def changed(self) -> list[str]:
        """Returns the names of the sources that differed before and after their copy, once `wait`
        has returned. A write that was undone in between is not detected. No device is asked, as it
        would answer only after all work of the training that is queued."""
        return [
            name
            for names, differ in self._checks
            for name, has_changed in zip(names, differ.tolist(), strict=True)
            if has_changed
        ]

    def _start(self, device: torch.device, pairs: Sequence[tuple[Tensor, Tensor]]) -> Any:
        named = [source for _, source in pairs if id(source) in self._names]
        # in order with the work that follows here
        before = [device_fingerprint(source) for source in named]
        stream = _side_stream(self._cuda, device)
        stream.wait_stream(self._cuda.current_stream(device))
        with self._cuda.stream(stream), torch.no_grad():
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            if named:
                after = [device_fingerprint(source) for source in named]
                differ = torch.stack(before) != torch.stack(after)
                names = [self._names[id(source)] for source in named]
                self._checks.append((names, differ.to("cpu", non_blocking=True)))
        self._sources += before  # the side stream reads them, too
        return stream.record_event()


@lru_cache
def _side_stream(cuda: Any, device: torch.device) -> Any:
    """Returns the stream of a device on which all copies are made. torch keeps what was allocated
    on a stream for that stream: on a new one for each copy, the memory of its fingerprints would
    be taken from the training again with every save."""
    return cuda.Stream(device)
