"""One rank of a world in which nobody talks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def silent_world(world_size: int, rank: int) -> Iterator[DeviceMesh]:
    """A mesh of all ranks, of which this process is `rank`."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield DeviceMesh("cpu", list(range(world_size)))
    finally:
        dist.destroy_process_group()
