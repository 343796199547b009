"""The files that a process may have open, most of which are connections to other ranks."""

from __future__ import annotations

import resource
from pathlib import Path

from checkpointing.errors import CheckpointError

_OTHERS = 256  # files, besides those that are open already, for services, stores and shards


def allow_connections(groups: int, world_size: int) -> None:
    """Raise this process's limit of open files, if it is too low for a connection to each rank in
    so many process groups of gloo, which ends a process that cannot open one.

    Raises:
        CheckpointError: the limit cannot be raised that far.
    """
    now = sum(1 for _ in Path("/proc/self/fd").iterdir())
    needed = now + groups * world_size + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise CheckpointError(
            f"each of {world_size:,} ranks needs up to {needed:,} open files, as it has {groups} "
            f"connections to each other rank, and may have {hard:,}: raise the hard limit of open "
            "files on the nodes (ulimit -Hn; LimitNOFILE= of slurmd)"
        )
    ample = 2 * needed  # the trainer may make such groups, too
    soft = ample if hard == resource.RLIM_INFINITY else min(ample, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
