"""The ranks that save and restore together, and how they agree."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from checkpointing.errors import CheckpointError

T = TypeVar("T")

# How long one rank may be behind another in a save or a restore. A peer that dies is noticed at
# once, by its closed connections.
TIMEOUT = timedelta(hours=2)
# ... and in a save whose state has another structure than the one before, which may be a mistake
STRUCTURE_TIMEOUT = timedelta(minutes=30)


class RankGroup:
    """All ranks of the default process group, or this process alone if there is none.

    Owns two gloo groups, so that the trainer's group is never used: `control`, and `structures`
    for what must not be mixed up with it if one rank comes alone. Constructing one is a
    collective. What travels is pickled by torch, from rank to rank of one job; nothing that was
    read from disk is unpickled.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1
        self.control: dist.ProcessGroup | None = None
        self.structures: dist.ProcessGroup | None = None
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
            self.control = dist.new_group(backend="gloo", timeout=TIMEOUT)
            self.structures = dist.new_group(backend="gloo", timeout=STRUCTURE_TIMEOUT)

    def is_outdated(self) -> bool:
        """Whether a process group was made after this object."""
        return self.control is None and dist.is_available() and dist.is_initialized()

    def broadcast(self, thing: T, group: dist.ProcessGroup | None) -> T:
        """Rank 0's `thing`."""
        if group is None:
            return thing
        box = [thing]
        dist.broadcast_object_list(box, src=0, group=group)
        return box[0]

    def all_gather(self, thing: T, group: dist.ProcessGroup | None) -> list[T]:
        """Everybody's `thing`, in order of rank."""
        if group is None:
            return [thing]
        things: list[Any] = [None] * self.world_size
        dist.all_gather_object(things, thing, group=group)
        return things

    def from_rank0(self, produce: Callable[[], T]) -> T:
        """What `produce` returns on rank 0; what it raises there is raised on every rank."""
        answer: tuple[T | None, Exception | None] = (None, None)
        if self.rank == 0:
            try:
                answer = (produce(), None)
            except Exception as error:
                self.broadcast((None, error), self.control)
                raise
        result, problem = self.broadcast(answer, self.control)
        if problem is not None:
            raise problem
        return result  # type: ignore[return-value]  # None only where T may be None

    def all_or_none(self, do: Callable[[], T]) -> T:
        """What `do` returns here, once it has worked on all ranks.

        Raises:
            Exception: it has not: on this rank, what it raised here; where others failed alone,
                the same kind of CheckpointError, which says which and what.
        """
        result: T | None = None
        failure: Exception | None = None
        try:
            result = do()
        except Exception as error:  # noqa: BLE001 - whatever it is, the peers must hear of it
            failure = error
        failures = [found for found in self.all_gather(self._told(failure), self.control) if found]
        if failure is not None:
            raise failure
        if failures:
            raise failures[0][0]("; ".join(text for _, text in failures))
        return result  # type: ignore[return-value]  # None only where T may be None

    def _told(self, failure: Exception | None) -> tuple[type[CheckpointError], str] | None:
        """A failure in a form that can travel."""
        if failure is None:
            return None
        if isinstance(failure, CheckpointError):
            return type(failure), f"rank {self.rank}: {failure}"
        return CheckpointError, f"rank {self.rank}: {type(failure).__name__}: {failure}"

    def close(self) -> None:
        """Release the groups, unless the trainer has ended torch.distributed already."""
        if dist.is_available() and dist.is_initialized():
            for group in (self.control, self.structures):
                if group is not None:
                    dist.destroy_process_group(group)
        self.control = self.structures = None
