"""The rank of this process and the `DataLoader` worker that it is, without importing torch."""

import os
import sys
from typing import Any, NamedTuple

from data.errors import PipelineError


class DataParallelRank(NamedTuple):
    """The rank of this process among those that share each global step."""

    rank: int
    world: int


class LoaderWorker(NamedTuple):
    """The number of this process among the workers of a `DataLoader`."""

    id: int
    workers: int
    seed: int
    """The same for all workers that were started together."""


def ranks(rank: int | None, world: int | None) -> DataParallelRank:
    """Return rank and world size: as given; else of torch.distributed if it is initialized; else of
    RANK and WORLD_SIZE; else a single rank.

    Raises PipelineError for invalid numbers.
    """
    if (rank is None) != (world is None):
        raise PipelineError("give both rank and world_size, or neither")
    found = DataParallelRank(rank, world) if rank is not None and world is not None else _found()
    if not 0 <= found.rank < found.world:
        raise PipelineError(f"rank must be in 0..world_size-1, got {found.rank} of {found.world}")
    return found


def worker() -> LoaderWorker | None:
    """Return the `DataLoader` worker that this process is; None outside of a worker."""
    data = sys.modules.get("torch.utils.data")
    info: Any = data.get_worker_info() if data is not None else None
    return None if info is None else LoaderWorker(info.id, info.num_workers, info.seed - info.id)


def _found() -> DataParallelRank:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return DataParallelRank(distributed.get_rank(), distributed.get_world_size())
    values = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    try:
        return DataParallelRank(int(values[0]), int(values[1]))
    except ValueError as error:
        raise PipelineError(
            f"RANK={values[0]!r} and WORLD_SIZE={values[1]!r} are not numbers"
        ) from error
