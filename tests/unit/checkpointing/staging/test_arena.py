"""Shared memory: who sees it, who may change its size, and what is left when its holders end."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.errors import StageError
from checkpointing.staging import arena as arena_module
from checkpointing.staging.arena import Arena
from checkpointing.staging.slot_layout import PAGE, layout
from tests.descriptors import links


def held(name: str) -> int:
    """Descriptors and mappings of arenas of this name. A test has a name of its own, as what other
    tests have left may be released meanwhile, by a thread."""
    descriptors = sum(f"memfd:hpckit-{name} " in link for link in links().elements())
    return descriptors + Path("/proc/self/maps").read_text().count(f"memfd:hpckit-{name} ")


def test_two_mappings_are_one_memory() -> None:
    with Arena.create(3 * PAGE) as mine, Arena.attach(os.dup(mine.fd)) as other:
        assert other.size == 3 * PAGE
        mine.view(PAGE, 5)[:] = [1, 2, 3, 4, 5]
        assert other.view(PAGE + 1, 3).tolist() == [2, 3, 4]
        other.view(PAGE, 1)[:] = 9
        assert mine.view(PAGE, 1)[0] == 9


def test_size_is_in_whole_pages_of_zeros() -> None:
    with Arena.create(PAGE + 1) as arena:
        assert arena.size == 2 * PAGE
        assert not arena.view(0, arena.size).any()


def test_another_process_sees_it_and_needs_no_torch() -> None:
    program = (
        "import sys\n"
        "from checkpointing.staging.arena import Arena\n"
        "from checkpointing.staging.slot_layout import StagedSnapshot\n"
        "from checkpointing.staging.buckets import divide\n"
        "import checkpointing.staging.host_memory\n"
        "assert 'torch' not in sys.modules\n"
        "arena = Arena.attach(int(sys.argv[1]))\n"
        "assert arena.view(7, 2).tolist() == [4, 2]\n"
        "arena.view(9, 1)[:] = 77\n"
    )
    with Arena.create(PAGE) as arena:
        arena.view(7, 2)[:] = [4, 2]
        argv = [sys.executable, "-c", program, str(arena.fd)]
        subprocess.run(argv, check=True, pass_fds=[arena.fd])
        assert arena.view(9, 1)[0] == 77


def test_no_other_process_inherits_it() -> None:
    with Arena.create(PAGE) as arena:
        assert not os.get_inheritable(arena.fd)
        fd = os.dup(arena.fd)
        os.set_inheritable(fd, True)
        with Arena.attach(fd):
            assert not os.get_inheritable(fd)


def test_only_its_user_may_open_it() -> None:
    with Arena.create(PAGE) as arena:
        assert os.fstat(arena.fd).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("size", [0, PAGE, 4 * PAGE])
def test_nobody_changes_its_size(size: int) -> None:
    with Arena.create(2 * PAGE) as arena:
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)
        with pytest.raises(PermissionError):  # nor takes the seals away
            fcntl.fcntl(arena.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def unsealed(size: int, seals: int) -> int:
    fd = os.memfd_create("hpckit-odd", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    ("size", "seals", "why"),
    [
        (PAGE, 0, "not sealed"),
        (PAGE, fcntl.F_SEAL_GROW, "not sealed"),
        (PAGE, fcntl.F_SEAL_SHRINK, "not sealed"),
        (0, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, "size is 0 bytes"),
        (PAGE - 1, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, "not whole pages"),
    ],
)
def test_what_is_no_arena_is_refused(size: int, seals: int, why: str) -> None:
    fd = unsealed(size, seals)
    with pytest.raises(StageError, match=why):
        Arena.attach(fd)
    os.close(fd)  # it stayed the caller's


def test_a_file_is_no_arena(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w+b") as file:
        file.write(bytes(PAGE))
        with pytest.raises(StageError, match=rf"descriptor {file.fileno()} is not an arena"):
            Arena.attach(file.fileno())


def test_who_only_reads_cannot_write() -> None:
    with (
        Arena.create(PAGE) as arena,
        Arena.attach(os.dup(arena.fd), writable=False) as reader,
    ):
        reader.prefault()
        arena.view(0, 1)[:] = 5
        assert reader.view(0, 1)[0] == 5
        with pytest.raises(ValueError, match="read-only"):
            reader.view(0, 1)[:] = 6


@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (0, PAGE + 1), (PAGE, 1), (5, -1)])
def test_no_view_beyond_the_end(offset: int, length: int) -> None:
    with Arena.create(PAGE) as arena, pytest.raises(ValueError, match="are outside the arena"):
        arena.view(offset, length)


@pytest.mark.parametrize("size", [0, -5])
def test_no_arena_without_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Arena.create(size)


def test_what_the_system_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(StageError, match=r"shared memory of 4096 bytes: .*Too many open files"):
        Arena.create(PAGE)
    monkeypatch.undo()
    with pytest.raises(StageError, match="use fewer slots"):
        Arena.create(1 << 60, "too-large")  # no address space has it
    assert held("too-large") == 0


def test_closed_is_closed() -> None:
    arena = Arena.create(PAGE)
    arena.close()
    arena.close()
    with pytest.raises(ValueError, match="closed"):
        arena.view(0, 1)
    with pytest.raises(ValueError, match="closed"):
        _ = arena.fd
    with pytest.raises(ValueError, match="closed"):
        arena.prefault()


def test_a_view_outlives_its_arena_and_then_nothing_is_left() -> None:
    arena = Arena.create(PAGE, "outlived")
    view = arena.view(0, 4)
    view[:] = 3
    assert held("outlived") == 3  # its descriptor, that of the mapping, the mapping
    arena.close()
    assert view.tolist() == [3, 3, 3, 3]
    assert held("outlived") > 0
    del view, arena
    gc.collect()
    assert held("outlived") == 0


def test_an_arena_that_is_dropped_leaves_nothing() -> None:
    arena = Arena.create(PAGE, "dropped")
    arena.view(0, 1)[:] = 1
    assert held("dropped") > 0
    del arena
    gc.collect()
    assert held("dropped") == 0


# --- prefault -----------------------------------------------------------------------------------


def taken(arena: Arena) -> int:
    """Bytes that the system has given for it."""
    return os.fstat(arena.fd).st_blocks * 512


@pytest.mark.parametrize("knows_populate", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_prefault_takes_all_and_keeps_the_content(
    knows_populate: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_module, "_PART", 8 * PAGE)
    if not knows_populate:
        monkeypatch.setattr(arena_module, "_MADV_POPULATE_WRITE", 9999)  # EINVAL, as before 5.14
    with Arena.create(50 * PAGE) as arena:
        arena.view(3 * PAGE, 2)[:] = [8, 9]
        assert taken(arena) == PAGE
        arena.prefault(threads)
        assert taken(arena) == 50 * PAGE
        assert arena.view(3 * PAGE, 2).tolist() == [8, 9]
        assert np.count_nonzero(arena.view(0, arena.size)) == 2


def test_prefault_without_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "_MADV_POPULATE_WRITE", 9999)

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        Arena.create(PAGE) as arena,
        pytest.raises(StageError, match=r"not enough host memory .* 4096 bytes: .*No space left"),
    ):
        arena.prefault()


# --- layout -------------------------------------------------------------------------------------

SIZES = st.lists(st.one_of(st.integers(0, 300), st.integers((1 << 20) - 70, (1 << 20) + 70)))


@given(SIZES)
def test_layout_is_aligned_and_nothing_overlaps(sizes: list[int]) -> None:
    offsets, total = layout(sizes)
    end = 0
    for offset, size in zip(offsets, sizes, strict=True):
        unit = PAGE if size > 1 << 20 else 64
        assert offset % unit == 0
        assert end <= offset < end + unit  # no gap is wider than it has to be
        end = offset + size
    assert total % PAGE == 0
    assert end <= total < end + PAGE
