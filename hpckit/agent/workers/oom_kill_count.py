"""Counts the processes that the kernel has killed because memory ran out, in this process's memory
cgroup.

Where Slurm keeps jobs in cgroups, this is the cgroup of the step, which holds the workers, too. The
limit may be the job's or the node's: the kernel counts in the cgroup of the killed process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_PROC = Path("/proc/self")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class OomCounterFile:
    """The file with a cgroup's count."""

    mount: Path
    """Mount point of the hierarchy."""
    cgroup: PurePosixPath
    """Path of the cgroup below the mount point."""
    file: str


def oom_kills() -> int | None:
    """Returns the kills since the cgroup was made, or None if there is no cgroup or the kernel is
    too old to count them.

    The count of reached limits (memory.failcnt) is no substitute: it rises whenever pages of files
    are dropped.
    """
    try:
        place = find_place((_PROC / "cgroup").read_text(), (_PROC / "mountinfo").read_text())
        return None if place is None else _read(place)
    except OSError:
        return None


def find_place(cgroups: str, mounts: str) -> OomCounterFile | None:
    """Returns the counter of the memory cgroup, of version 1 if there is one, else of version 2.

    Args:
        cgroups, mounts: contents of /proc/self/cgroup and /proc/self/mountinfo.
    """
    of_version_1, of_version_2 = _paths(cgroups)
    if of_version_1 is not None:
        return _counter(of_version_1, mounts, "cgroup", "memory.oom_control")
    if of_version_2 is not None:
        return _counter(of_version_2, mounts, "cgroup2", "memory.events")
    return None


def parse_count(text: str) -> int | None:
    """Returns the count in either kind of file."""
    match = _COUNT.search(text)
    return int(match[1]) if match else None


def _read(place: OomCounterFile) -> int | None:
    """Reads the count of the cgroup, or of its nearest parent that counts memory."""
    for cgroup in (place.cgroup, *place.cgroup.parents):
        try:
            return parse_count((place.mount / cgroup / place.file).read_text())
        except FileNotFoundError:
            continue
    return None


def _paths(cgroups: str) -> tuple[str | None, str | None]:
    """Returns the paths of the cgroups of version 1 and 2."""
    first = second = None
    for line in cgroups.splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            first = path
        elif number == "0" and not controllers:
            second = path
    return first, second


def _counter(path: str, mounts: str, kind: str, file: str) -> OomCounterFile | None:
    """Returns the counter file below a mount. In a container, a mount may show the hierarchy only
    from below its root."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split(" ")[3:5]
        fstype, _, options = after.split(" ", 2)
        is_it = fstype == kind and (kind == "cgroup2" or "memory" in options.split(","))
        if is_it and PurePosixPath(path).is_relative_to(root):
            return OomCounterFile(
                Path(_unescaped(mount)), PurePosixPath(path).relative_to(root), file
            )
    return None


def _unescaped(mount: str) -> str:
    """Decodes mountinfo's escapes of blanks."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), mount)
