"""What is free, as kernels of three kinds say it, and the refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from checkpointing.errors import StageError
from checkpointing.staging.host_memory import FreeMemory, available, gib, need, require

GIB = 1 << 30
MEMINFO = (
    "MemTotal:       131072000 kB\nMemFree:  1000 kB\nMemAvailable:   104857600 kB\n"  # 100 GiB
)
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {inner} /sys/fs/cgroup/memory rw shared:7 - cgroup cgroup rw,memory\n"
)
V2_MOUNTS = "31 23 0:28 {inner} /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/meminfo", MEMINFO)
    return tmp_path


def v1(root: Path, path: str, inner: str = "/") -> Path:
    write(root / "proc/self/cgroup", f"9:cpuacct,cpu:/x\n4:memory:{path}\n0::/other\n")
    write(root / "proc/self/mountinfo", V1_MOUNTS.format(inner=inner))
    return root / "sys/fs/cgroup/memory"


def v2(root: Path, path: str, inner: str = "/") -> Path:
    write(root / "proc/self/cgroup", f"0::{path}\n")
    write(root / "proc/self/mountinfo", V2_MOUNTS.format(inner=inner))
    return root / "sys/fs/cgroup"


def limit_v1(folder: Path, limit: int, usage: int, cache: int = 0) -> None:
    write(folder / "memory.limit_in_bytes", f"{limit}\n")
    write(folder / "memory.usage_in_bytes", f"{usage}\n")
    write(folder / "memory.stat", f"inactive_file 1\ntotal_inactive_file {cache}\n")


def limit_v2(
    folder: Path, limit: str | int, usage: int, cache: int = 0, high: str | int = "max"
) -> None:
    write(folder / "memory.max", f"{limit}\n")
    write(folder / "memory.high", f"{high}\n")
    write(folder / "memory.current", f"{usage}\n")
    write(folder / "memory.stat", f"anon 5\ninactive_file {cache}\n")


Make = Callable[..., Path]  # a tree of cgroups; its top
Limit = Callable[..., None]


def test_without_cgroups_it_is_what_the_machine_has(root: Path) -> None:
    assert available(root) == FreeMemory(100 * GIB, "the machine has 125.0 GiB")


def test_v1_limit_minus_usage(root: Path) -> None:
    limit_v1(v1(root, "/job") / "job", 64 * GIB, 60 * GIB)
    assert available(root) == FreeMemory(4 * GIB, "cgroup limit 64.0 GiB")


def test_v2_limit_minus_usage(root: Path) -> None:
    limit_v2(v2(root, "/job") / "job", 64 * GIB, 60 * GIB)
    assert available(root) == FreeMemory(4 * GIB, "cgroup limit 64.0 GiB")


def test_unused_file_cache_is_free(root: Path) -> None:
    limit_v2(v2(root, "/job") / "job", 64 * GIB, 60 * GIB, cache=10 * GIB)
    assert available(root).bytes == 14 * GIB
    limit_v1(v1(root, "/job") / "job", 64 * GIB, 60 * GIB, cache=20 * GIB)
    assert available(root).bytes == 24 * GIB


def test_v2_throttling_counts_as_a_limit(root: Path) -> None:
    limit_v2(v2(root, "/job") / "job", 64 * GIB, 10 * GIB, high=12 * GIB)
    assert available(root) == FreeMemory(2 * GIB, "cgroup limit 12.0 GiB")


@pytest.mark.parametrize("tightest", ["slurm", "slurm/uid_0", "slurm/uid_0/job_1"])
def test_every_cgroup_above_counts(root: Path, tightest: str) -> None:
    top = v1(root, "/slurm/uid_0/job_1")
    for folder in ("slurm", "slurm/uid_0", "slurm/uid_0/job_1"):
        limit_v1(top / folder, (8 if folder == tightest else 50) * GIB, GIB)
    assert available(root) == FreeMemory(7 * GIB, "cgroup limit 8.0 GiB")


def test_no_limit_is_none(root: Path) -> None:
    limit_v2(v2(root, "/job") / "job", "max", 10 * GIB)
    assert available(root).bytes == 100 * GIB
    limit_v1(v1(root, "/job") / "job", 9223372036854771712, GIB)
    assert available(root).bytes == 100 * GIB


def test_more_used_than_allowed_leaves_nothing(root: Path) -> None:
    limit_v2(v2(root, "/job") / "job", GIB, 3 * GIB)
    assert available(root).bytes == 0


@pytest.mark.parametrize(("make", "limit"), [(v1, limit_v1), (v2, limit_v2)])
def test_in_a_container_the_mount_is_part_of_the_tree(root: Path, make: Make, limit: Limit) -> None:
    """The path of the process is that of the host, the mount shows the container's part."""
    top = make(root, "/docker/abc/step", inner="/docker/abc")
    limit(top / "step", 5 * GIB, GIB)
    assert available(root).bytes == 4 * GIB


@pytest.mark.parametrize(("make", "limit"), [(v1, limit_v1), (v2, limit_v2)])
def test_a_path_that_is_not_mounted_means_the_mount_itself(
    root: Path, make: Make, limit: Limit
) -> None:
    top = make(root, "/host/slice", inner="/docker/abc")
    limit(top, 5 * GIB, GIB)
    assert available(root).bytes == 4 * GIB


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "MemTotal: 5 kB\nMemAvailable: x kB\n"])
def test_a_kernel_that_does_not_say(root: Path, text: str) -> None:
    write(root / "proc/meminfo", text)
    with pytest.raises(StageError, match="does not say how much memory is free"):
        available(root)


def test_of_this_machine() -> None:
    assert available().bytes > 0


# --- require ------------------------------------------------------------------------------------


def test_what_fits_is_taken() -> None:
    assert need(3, 2, 4) == 24
    require(3, 2, 4, FreeMemory(24, "b"))


def test_the_refusal_says_all() -> None:
    free = FreeMemory(int(13.1 * GIB), "cgroup limit 64.0 GiB")
    with pytest.raises(StageError) as caught:
        require(int(3.1 * GIB), 2, 4, free)
    assert str(caught.value) == (
        "staging needs 2 × 12.4 GiB of host memory on this node (2 slots of 4 ranks), but only "
        "13.1 GiB are free (cgroup limit 64.0 GiB): use slots=1, or staging='buckets'"
    )


def test_slots_1_is_proposed_only_where_it_helps() -> None:
    with pytest.raises(StageError, match=r"\(2 slots\).*: use staging='buckets'$"):
        require(10 * GIB, 2, 1, FreeMemory(9 * GIB, "b"))
    with pytest.raises(StageError, match=r"1 × 10.0 GiB .*\(1 slot\).*: use staging='buckets'$"):
        require(10 * GIB, 1, 1, FreeMemory(9 * GIB, "b"))


def test_sizes() -> None:
    assert [gib(s) for s in (12 * GIB, GIB // 2, 3 << 20)] == ["12.0 GiB", "0.5 GiB", "3.0 MiB"]


def test_the_refusal_of_buckets_says_what_they_need() -> None:
    with pytest.raises(StageError, match=r"needs 2.0 GiB .*\(buckets of 2 ranks\), 1.0 GiB are"):
        require(GIB, 1, 2, FreeMemory(GIB, "b"), is_bucketed=True)
    require(GIB, 1, 2, FreeMemory(2 * GIB, "b"), is_bucketed=True)
