"""One owner per run, known by name, for exactly as long as it lives."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from hpckit.rundir.lock import RunHeldError, RunLock, holder, read_owner
from tests.unit.hpckit.specs_and_processes import line_of, python

HOLD = """
import sys; from pathlib import Path; from hpckit.rundir.lock import RunLock
with RunLock(Path(sys.argv[1]), "submission 7"):
    print("held", flush=True); sys.stdin.readline()
print("left", flush=True); sys.stdin.readline()
"""


def test_a_second_process_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with python(HOLD, path) as first:
        assert line_of(first) == "held"
        with pytest.raises(RunHeldError) as caught, RunLock(path, "second", wait_s=0.0):
            pytest.fail("two owners")
        owner = holder(path)
    assert caught.value.owner is not None
    assert caught.value.owner == owner
    assert (owner.pid, owner.what) == (first.pid, "submission 7")
    assert str(tmp_path) in str(caught.value)
    assert f"submission 7, process {first.pid} on {owner.host}" in str(caught.value)


def test_a_lock_is_free_after_its_block(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with python(HOLD, path) as first:
        assert line_of(first) == "held"
        assert first.stdin is not None
        first.stdin.write("\n")
        first.stdin.flush()
        assert line_of(first) == "left"
        assert holder(path) is None
        assert read_owner(path) is None
        with RunLock(path, "second", wait_s=0.0):
            pass


def test_a_lock_is_gone_with_a_holder_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with python(HOLD, path) as first:
        assert line_of(first) == "held"
        first.kill()
        first.wait()
        assert holder(path) is None
        with RunLock(path, "second", wait_s=0.0):
            owner = holder(path)
            assert owner is not None
            assert owner.what == "second"


def test_a_lock_is_not_passed_on_to_programs_that_its_holder_starts(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with RunLock(path, "first"):
        child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        assert holder(path) is None
    finally:
        child.kill()
        child.wait()


def test_two_looks_at_once_see_no_holder_in_each_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as other_look:
        fcntl.flock(other_look, fcntl.LOCK_SH)
        assert holder(path) is None


def test_looking_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder(path) is None
    assert not path.exists()
    with RunLock(path, "first"):
        before = path.read_bytes()
        for _ in range(20):
            assert holder(path) is not None
        assert path.read_bytes() == before
        with pytest.raises(RunHeldError), RunLock(path, "second", wait_s=0.0):
            pytest.fail("the look took the lock away")


def test_a_holder_that_has_not_signed_yet_is_unknown_not_absent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with RunLock(path, "first"):
        path.write_bytes(b"")
        owner = holder(path)
        assert owner is not None
        assert "unknown" in owner.what
        with (
            pytest.raises(RunHeldError, match="an unknown process"),
            RunLock(path, "second", wait_s=0.0),
        ):
            pytest.fail("two owners")


def test_a_full_disk_takes_no_run_from_who_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "lock"
    monkeypatch.setattr(os, "pwrite", pwrite)
    with RunLock(path, "first"):
        owner = holder(path)
        assert owner is not None
        assert owner.what == "an unknown process"
        with pytest.raises(RunHeldError), RunLock(path, "second", wait_s=0.0):
            pytest.fail("two owners")
    assert holder(path) is None
    assert "does not say who holds it" in caplog.text


LOOK = """
import os, sys; from pathlib import Path; from hpckit.rundir.lock import holder
os.setuid(65534)  # who may read the lock, and not write it
print(holder(Path(sys.argv[1])), flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs to be root, to become another user")
def test_another_user_sees_who_holds_a_lock() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with RunLock(Path(folder) / "lock", "submission 7"), python(LOOK, f"{folder}/lock") as user:
            assert line_of(user).startswith(f"submission 7, process {os.getpid()} on ")
        with python(LOOK, f"{folder}/lock") as user:
            assert line_of(user) == "None"


def test_a_pipe_in_the_place_of_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    assert holder(tmp_path / "lock") is None
