"""Finds folders for scratch files on a machine's own disks, by names that are common at sites."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

# /tmp is not listed, as at many sites it is small, in memory, or cleared for each job
NAMES = (
    *("/local", "/localscratch", "/local_scratch", "/lscratch", "/scratch/local", "/localdisk"),
    *("/local/scratch", "/nvme", "/mnt/nvme", "/ssd", "/mnt/ssd", "/scratch", "/var/scratch"),
)
DISKS = {"ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"}
"""File systems that no other machine shares."""


@dataclass(frozen=True)
class ScratchDisk:
    """A folder that this user may write to."""

    folder: str
    free_bytes: int


def own_disks() -> tuple[ScratchDisk, ...]:
    """Return the folders on this machine, the one with the most free space first."""
    kinds = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    folders = (Path(name, *more) for name in NAMES for more in ((), (getpass.getuser(),)))
    there = [
        ScratchDisk(str(folder), psutil.disk_usage(str(folder)).free)
        for folder in folders
        if kind_of(folder.resolve(), kinds) in DISKS and os.access(folder, os.W_OK | os.X_OK)
    ]
    return tuple(sorted(there, key=lambda disk: -disk.free_bytes))


def kind_of(folder: Path, kinds: Mapping[str, str]) -> str | None:
    """Return the type of the file system that contains `folder`; `kinds` has it by mount point."""

    above: Iterable[Path] = (folder, *folder.parents)
    return next((kinds[str(one)] for one in above if str(one) in kinds), None)
