"""Faults of local files: single system calls, a folder that fails by rule, a disk that is small."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services.fault_fs import NO_SPACE, QUOTA_AT_CLOSE, READ_ONLY, FaultFs, Rule
from tests.services.fixtures import Inject

# writes and syncs as many files as it is told to, then prints how each ended
WRITER = """\
import errno, os, sys
for i in range(int(sys.argv[2])):
    fd = os.open(f"{sys.argv[1]}/{i}", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"x" * 100)
    try:
        os.fsync(fd)
        print("ok")
    except OSError as error:
        print(errno.errorcode[error.errno])
    os.close(fd)
"""


def writer(folder: Path, files: int) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", WRITER, str(folder), str(files)]


def error_of(action: Callable[[], object]) -> str:
    with pytest.raises(OSError) as caught:
        action()
    return errno.errorcode[caught.value.errno or 0]


def write_and_sync(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"data")
        file.flush()
        os.fsync(file.fileno())


def test_the_third_fsync_fails(inject_faults: Inject, tmp_path: Path) -> None:
    with inject_faults(["fsync:error=EIO:when=3"]) as injected:
        done = subprocess.run(
            [*injected.prefix, *writer(tmp_path, 4)], stdout=subprocess.PIPE, text=True, check=True
        )
        assert done.stdout.split() == ["ok", "ok", "EIO", "ok"]
        (call,) = injected.calls
        assert "fsync" in call


def test_a_program_is_killed_in_place_of_a_call(inject_faults: Inject, tmp_path: Path) -> None:
    with inject_faults(["fsync:signal=KILL:when=2"]) as injected:
        done = subprocess.run(
            [*injected.prefix, *writer(tmp_path, 4)], stdout=subprocess.PIPE, text=True, check=False
        )
        assert len(injected.calls) == 1
    assert done.returncode == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_kill_hits_the_program_and_not_strace(inject_faults: Inject) -> None:
    program = [sys.executable, "-I", "-S", "-c", "import os, time; print(os.getpid(), flush=True)"]
    program[-1] += "; time.sleep(600)"
    with inject_faults(["fsync:error=EIO"]) as injected:
        command = [*injected.prefix, *program]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert int(process.stdout.readline()) == process.pid
            process.kill()
        assert process.returncode == -signal.SIGKILL


def test_without_rules_a_folder_is_a_folder(faulty_folder: FaultFs) -> None:
    path = faulty_folder.path
    (path / "sub").mkdir()
    write_and_sync(path / "sub/a")
    os.link(path / "sub/a", path / "b")
    (path / "sub/a").rename(path / "c")
    with pytest.raises(FileExistsError):
        (path / "c").open("xb")
    assert (path / "c").stat().st_ino == (path / "b").stat().st_ino
    assert (faulty_folder.folder / "b").read_bytes() == b"data"
    (path / "b").unlink()
    assert sorted(entry.name for entry in path.iterdir()) == ["c", "sub"]


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "ESTALE", "EDQUOT"])
@pytest.mark.parametrize("operation", ["open", "create", "write", "fsync", "flush"])
def test_an_operation_fails(faulty_folder: FaultFs, operation: str, error: str) -> None:
    path = faulty_folder.path / "a"
    if operation == "open":
        path.touch()
    faulty_folder.set_rules(Rule((operation,), error=error))
    assert error_of(lambda: write_and_sync(path)) == error
    assert faulty_folder.hits[0] >= 1
    faulty_folder.set_rules()
    write_and_sync(path)


def test_a_sync_of_a_folder_fails(faulty_folder: FaultFs) -> None:
    fd = os.open(faulty_folder.path, os.O_RDONLY)
    os.fsync(fd)
    faulty_folder.set_rules(Rule(("fsyncdir",), error="EIO"))
    assert error_of(lambda: os.fsync(fd)) == "EIO"
    os.close(fd)


def test_a_full_folder(faulty_folder: FaultFs) -> None:
    (faulty_folder.path / "old").touch()
    faulty_folder.set_rules(NO_SPACE)
    assert error_of(lambda: write_and_sync(faulty_folder.path / "new")) == "ENOSPC"
    assert error_of(lambda: write_and_sync(faulty_folder.path / "old")) == "ENOSPC"
    (faulty_folder.path / "old").unlink()


def test_a_quota_that_shows_at_close(faulty_folder: FaultFs) -> None:
    faulty_folder.set_rules(QUOTA_AT_CLOSE)
    fd = os.open(faulty_folder.path / "a", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"data")
    os.fsync(fd)
    assert error_of(lambda: os.close(fd)) == "EDQUOT"


def test_a_read_only_folder(faulty_folder: FaultFs) -> None:
    path = faulty_folder.path / "a"
    write_and_sync(path)
    faulty_folder.set_rules(READ_ONLY)
    assert path.read_bytes() == b"data"
    new = faulty_folder.path / "new"
    changes = (lambda: path.open("ab"), path.unlink, lambda: new.open("xb"), new.mkdir)
    assert {error_of(change) for change in changes} == {"EROFS"}
    assert error_of(lambda: os.link(path, new)) == "EROFS"
    assert error_of(lambda: path.rename(new)) == "EROFS"


def test_rules_choose_by_path_and_turn(faulty_folder: FaultFs) -> None:
    faulty_folder.set_rules(Rule(("create",), error="EIO", path=r"/pack", skip=1, times=2))
    outcomes = []
    for name in ("pack-1", "other", "pack-2", "pack-3", "pack-4"):
        try:
            (faulty_folder.path / name).touch()
        except OSError:
            outcomes.append(name)
    assert outcomes == ["pack-2", "pack-3"]
    assert faulty_folder.hits == [2]


def test_an_operation_hangs_until_the_rules_change(faulty_folder: FaultFs) -> None:
    faulty_folder.set_rules(Rule(("fsync",), hang=True))
    write = threading.Thread(target=write_and_sync, args=(faulty_folder.path / "a",))
    write.start()
    while faulty_folder.hits != [1]:  # the suite's timeout ends it
        write.join(0.01)
    assert write.is_alive()
    faulty_folder.set_rules()
    write.join()
    assert (faulty_folder.path / "a").read_bytes() == b"data"


def test_an_operation_is_delayed_and_done(faulty_folder: FaultFs) -> None:
    faulty_folder.set_rules(Rule(("write",), delay_s=0.01))
    write_and_sync(faulty_folder.path / "a")
    assert faulty_folder.hits == [1]
    assert (faulty_folder.path / "a").read_bytes() == b"data"


def test_a_rule_of_an_unknown_error_is_refused(faulty_folder: FaultFs) -> None:
    with pytest.raises(ValueError, match="ENOSUCH"):
        faulty_folder.set_rules(Rule(("write",), error="ENOSUCH"))


def test_a_small_disk_fills_up(small_disk: Path) -> None:
    (small_disk / "fits").write_bytes(bytes(3 << 20))
    assert error_of(lambda: (small_disk / "not").write_bytes(bytes(2 << 20))) == "ENOSPC"
    (small_disk / "fits").unlink()
    (small_disk / "now").write_bytes(bytes(2 << 20))
