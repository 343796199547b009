"""Slurm's cgroups (version 1) of a cluster's nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from slurm.devcluster.daemons.wait_conditions import wait_until

_TREES = Path("/sys/fs/cgroup")
_NEEDED = ("freezer", "memory", "cpuset", "cpuacct")


def missing() -> list[str]:
    """Returns the controllers that Slurm needs and that cannot be written on this machine."""
    return [name for name in _NEEDED if not _can_be_had(_TREES / name)]


def of_node(name: str) -> list[Path]:
    """Returns the topmost cgroups of a node, one for each controller."""
    return sorted(_TREES.glob(f"*/slurm_{name}"))


def remove(names: Iterable[str]) -> list[Path]:
    """Removes the cgroups of these nodes, whose processes have ended; returns what is left."""
    tops = [top for name in names for top in of_node(name)]
    wait_until(lambda: all(_is_removed(top) for top in tops), 5, every_s=0.1)
    return [top for top in tops if top.exists()]


def _is_removed(top: Path) -> bool:
    for path, _, _ in os.walk(top, topdown=False):
        try:
            Path(path).rmdir()  # files in it are the kernel's
        except OSError:
            return False
    return True


def _can_be_had(tree: Path) -> bool:
    return (tree / "cgroup.procs").exists() and os.access(tree, os.W_OK)
