"""The memory of slots, and blocking copies into it from any device."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from checkpointing.staging.arena import Arena
from checkpointing.staging.page_prefault import Prefault
from checkpointing.staging.pinned_memory import DeviceCopy, PinnedArena
from checkpointing.staging.tensor_copy import copy

Pairs = tuple[list[Tensor], list[Tensor]]  # targets, sources


class SlotMemory:
    """An arena whose pages are allocated in the background, from its beginning on, once they are
    asked for."""

    def __init__(self, size: int, arena: Arena | None = None) -> None:
        """
        Args:
            size: size in bytes.
            arena: an arena to use instead of a new one.

        Raises:
            StageError: the system refuses the memory.
        """
        self.arena = arena or Arena.create(size)
        self._pinned: PinnedArena | None = None
        self._prefault = Prefault(self.arena)

    @property
    def is_pinned(self) -> bool:
        return self._pinned is not None

    def begin_allocation(self) -> None:
        """Allocate the memory in the background from now on."""
        self._prefault.begin()

    def await_memory(self, stop: int) -> None:
        """Block until the bytes before `stop` can be copied into at full speed.

        Raises:
            StageError: there is not enough memory.
        """
        self._prefault.wait(stop)

    def pin(self) -> None:
        """Prepare it for copies from CUDA devices, which allocates all of it; a second call does
        nothing."""
        if self._pinned is None:
            self._pinned = PinnedArena(self.arena)

    def close(self) -> None:
        """Release it; no copy may be under way."""
        self._prefault.stop()
        if self._pinned is not None:
            self._pinned.close()
        self.arena.close()


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy all sources to their targets; complete on return."""
    on_device, in_host = by_device(targets, sources)
    under_way = DeviceCopy(*on_device) if on_device[0] else None
    copy(*in_host)
    if under_way is not None:
        under_way.wait()


def by_device(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> tuple[Pairs, Pairs]:
    """Returns the pairs that CUDA devices copy, and those that the CPU does."""
    on_device = [source.is_cuda for source in sources]
    if not any(on_device):
        return ([], []), (list(targets), list(sources))
    return (
        pick(targets, sources, on_device),
        pick(targets, sources, [not there for there in on_device]),
    )


def pick(targets: Sequence[Tensor], sources: Sequence[Tensor], wanted: Sequence[bool]) -> Pairs:
    """Returns the pairs that are wanted."""
    rows = list(zip(targets, sources, wanted, strict=True))
    return [t for t, _, is_wanted in rows if is_wanted], [s for _, s, w in rows if w]
