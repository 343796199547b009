"""Where the kernel counts whom it killed for want of memory."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from hpckit.agent.workers.oom_kill_count import OomCounterFile, find_place, oom_kills, parse_count

V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
OTHER = "37 31 0:34 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer"
V2 = "41 31 0:38 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw"
IN_CONTAINER = "41 31 0:38 /job_7/step_1 /sys/fs/my\\040cgroup rw - cgroup2 cgroup2 rw"
JOB = "5:devices:/\n4:memory,hugetlb:/slurm/job_7\n0::/\n"


def place(mount: str, cgroup: str, file: str) -> OomCounterFile:
    return OomCounterFile(Path(mount), PurePosixPath(cgroup), file)


@pytest.mark.parametrize(
    ("cgroups", "mounts", "found"),
    [
        (JOB, [OTHER, V1, V2], place("/sys/fs/cgroup/memory", "slurm/job_7", "memory.oom_control")),
        ("0::/user/job_7\n", [OTHER, V2], place("/sys/fs/cgroup", "user/job_7", "memory.events")),
        ("0::/\n", [V2], place("/sys/fs/cgroup", ".", "memory.events")),
        (
            "0::/job_7/step_1/a:b\n",
            [V1, IN_CONTAINER],
            place("/sys/fs/my cgroup", "a:b", "memory.events"),
        ),
        ("0::/job_8\n", [IN_CONTAINER], None),
        (JOB, [OTHER, V2], None),
        ("5:devices:/\n", [V1, V2], None),
        ("", [], None),
    ],
)
def test_the_place_is_found(cgroups: str, mounts: list[str], found: OomCounterFile | None) -> None:
    assert find_place(cgroups, "\n".join(mounts)) == found


def test_the_count_is_read_from_either_version() -> None:
    assert parse_count("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n") == 3
    assert parse_count("low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n") == 1
    assert parse_count("oom_kill_disable 0\nunder_oom 0\n") is None


def test_a_machine_without_a_count_is_no_error() -> None:
    found = oom_kills()
    assert found is None or found >= 0
