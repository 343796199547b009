"""How many processes the kernel has killed for want of memory, in this process's memory cgroup.

Where Slurm keeps jobs in cgroups, that is the one of the step, and the workers are in it too. The
limit may be the job's or the node's: the count is that of the cgroup of who was killed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_PROC = Path("/proc/self")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class OomCounterFile:
    """Where a cgroup's count is told."""

    mount: Path
    """Of the hierarchy."""
    cgroup: PurePosixPath
    """Below it."""
    file: str


def oom_kills() -> int | None:
    """Since the cgroup was made; None where there is none, or an older kernel that does not say.

    The count that the limit was reached (memory.failcnt) is no substitute: it rises whenever pages
    of files are dropped.
    """
    try:
        place = find_place((_PROC / "cgroup").read_text(), (_PROC / "mountinfo").read_text())
        return None if place is None else _read(place)
    except OSError:
        return None


def find_place(cgroups: str, mounts: str) -> OomCounterFile | None:
    """The place of the memory cgroup, of version 1 if there is one, else of version 2.

    Args:
        cgroups, mounts: what /proc/self/cgroup and /proc/self/mountinfo say.
    """
    of_version_1, of_version_2 = _paths(cgroups)
    if of_version_1 is not None:
        return _below(of_version_1, mounts, "cgroup", "memory.oom_control")
    if of_version_2 is not None:
        return _below(of_version_2, mounts, "cgroup2", "memory.events")
    return None


def parse_count(text: str) -> int | None:
    """Of either file."""
    match = _COUNT.search(text)
    return int(match[1]) if match else None


def _read(place: OomCounterFile) -> int | None:
    """Of the cgroup, or of the nearest one above it that counts memory at all."""
    for cgroup in (place.cgroup, *place.cgroup.parents):
        try:
            return parse_count((place.mount / cgroup / place.file).read_text())
        except FileNotFoundError:
            continue
    return None


def _paths(cgroups: str) -> tuple[str | None, str | None]:
    """Of the two versions."""
    first = second = None
    for line in cgroups.splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            first = path
        elif number == "0" and not controllers:
            second = path
    return first, second


def _below(path: str, mounts: str, kind: str, file: str) -> OomCounterFile | None:
    """What of the hierarchy is mounted may begin below its root, as in a container."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split(" ")[3:5]
        fstype, _, options = after.split(" ", 2)
        is_it = fstype == kind and (kind == "cgroup2" or "memory" in options.split(","))
        if is_it and PurePosixPath(path).is_relative_to(root):
            return OomCounterFile(Path(_plain(mount)), PurePosixPath(path).relative_to(root), file)
    return None


def _plain(mount: str) -> str:
    """Without mountinfo's escapes of blanks."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), mount)
