"""The ranks that save and restore together, and how they agree."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from checkpointing.errors import CheckpointError

T = TypeVar("T")

# How long one rank may be behind another in a save or a restore, so also the longest that a write
# may take. A peer that dies is noticed at once, by its closed connections.
TIMEOUT = timedelta(hours=2)


class Ranks:
    """All ranks of the default process group, or this process alone if there is none.

    Owns two gloo groups, so that neither the trainer's group nor each other are ever shared
    between threads: `control` for the trainer's thread, `background` for the writer's.
    Constructing one is a collective. What travels is pickled by torch, from rank to rank of one
    job; nothing that was read from disk is unpickled.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1
        self.control: dist.ProcessGroup | None = None
        self.background: dist.ProcessGroup | None = None
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
            self.control = dist.new_group(backend="gloo", timeout=TIMEOUT)
            self.background = dist.new_group(backend="gloo", timeout=TIMEOUT)

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

    def together(self, do: Callable[[], T], group: dist.ProcessGroup | None) -> list[T]:
        """What `do` returns on every rank, in order of rank, once all have done it.

        Raises:
            CheckpointError: on every rank, if it raised anything on any; says which and what.
        """
        outcome: tuple[T | None, str | None] = (None, None)
        failure: Exception | None = None
        try:
            outcome = (do(), None)
        except Exception as error:  # noqa: BLE001 - whatever it is, the peers must hear of it
            failure = error
            outcome = (None, f"rank {self.rank}: {type(error).__name__}: {error}")
        outcomes = self.all_gather(outcome, group)
        problems = [problem for _, problem in outcomes if problem is not None]
        if problems:
            raise CheckpointError("; ".join(problems)) from failure
        return [result for result, _ in outcomes]  # type: ignore[misc]  # None only where T may be

    def close(self) -> None:
        """Release the groups, unless the trainer has ended torch.distributed already."""
        if dist.is_available() and dist.is_initialized():
            for group in (self.control, self.background):
                if group is not None:
                    dist.destroy_process_group(group)
        self.control = self.background = None
