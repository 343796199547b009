from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from checkpointing.errors import StoreAccessError, StoreError, StoreFullError
from checkpointing.storage.interface import SupportsTemporaryRemoval
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.storage.posix.syscalls import Syscalls
from checkpointing.storage.retry import StorageRetryPolicy
from tests.effort import times
from tests.forkserver import fork_server

AT_ONCE = StorageRetryPolicy(first_s=0.0, most_tries=5)


class Faulty(Syscalls):
    """Real calls, of which some fail: `faults[name]` are errors to raise, one per call, None for
    a call that goes well."""

    def __init__(self, faults: dict[str, list[OSError | None]]) -> None:
        self.faults = faults
        self.made: list[tuple[str, Any]] = []

    def __getattribute__(self, name: str) -> Any:
        real = super().__getattribute__(name)
        if name.startswith("_") or name in ("faults", "made"):
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            self.made.append((name, arguments))
            left = self.faults.get(name, [])
            error = left.pop(0) if left else None
            if error is not None:
                raise error
            return real(*arguments, **options)

        return call


def failing(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def storage_with(root: Path, **faults: list[OSError | None]) -> tuple[PosixStorage, Faulty]:
    calls = Faulty(faults)
    return PosixStorage(str(root), policy=AT_ONCE, syscalls=calls), calls


def files_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


PUBLISH: list[Callable[[PosixStorage], object]] = [
    lambda storage: storage.put("a/b", [b"da", b"ta"]),
    lambda storage: storage.create("a/b", b"data"),
    lambda storage: storage.replace("a/b", b"data"),
]
each_way = pytest.mark.parametrize("publish", PUBLISH, ids=["put", "create", "replace"])


@each_way
@pytest.mark.parametrize("call", ["create", "writev", "fsync", "close", "open_dir"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(
    tmp_path: Path, publish: Callable[[PosixStorage], object], call: str, number: int
) -> None:
    publish(storage_with(tmp_path)[0])  # so that the folders are there
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "a").mkdir()
    storage, calls = storage_with(tmp_path)
    storage.put("a/first", [b"x"])
    calls.faults[call] = [failing(number)]
    with pytest.raises(StoreFullError, match=r"a/b.*prune"):
        publish(storage)
    assert [name for name in files_in(tmp_path) if name.endswith(".tmp")] == []
    assert storage.counters.retries == 0


@each_way
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_no_access(tmp_path: Path, publish: Callable[[PosixStorage], object], number: int) -> None:
    storage, _ = storage_with(tmp_path, create=[failing(number)])
    with pytest.raises(StoreAccessError, match="a/b"):
        publish(storage)


@each_way
@pytest.mark.parametrize("call", ["writev", "fsync", "close"])
def test_after_an_error_the_file_is_written_anew(
    tmp_path: Path, publish: Callable[[PosixStorage], object], call: str
) -> None:
    (tmp_path / "a").mkdir()
    storage, calls = storage_with(tmp_path)
    storage.put("a/first", [b"x"])
    calls.made.clear()
    calls.faults[call] = [failing(errno.EIO), failing(errno.EIO)]
    publish(storage)
    assert (tmp_path / "a/b").read_bytes() == b"data"
    created = [arguments for name, arguments in calls.made if name == "create"]
    assert len(created) == len(set(created)) == 3
    assert storage.counters.retries == 2
    assert files_in(tmp_path) == ["a/b", "a/first"]


def test_no_file_is_fsynced_twice(tmp_path: Path) -> None:
    storage, calls = storage_with(tmp_path)
    storage.put("first", [b"x"])
    calls.made.clear()
    calls.faults["fsync"] = [failing(errno.EIO)] * 9
    with pytest.raises(StoreError, match=r"write .*second: given up after 5 tries"):
        storage.put("second", [b"x"])
    names = [name for name, _ in calls.made]
    assert names.count("fsync") == names.count("create") == 5
    assert files_in(tmp_path) == ["first"]


@pytest.mark.parametrize(("data", "holds"), [(b"mine", True), (b"other", False)])
def test_create_after_a_lost_reply(tmp_path: Path, data: bytes, holds: bool) -> None:
    """NFS says EEXIST for a link that it made."""

    class LosesReply(Syscalls):
        def link(self, source: str, target: str) -> None:
            Path(target).write_bytes(b"mine")
            raise failing(errno.EEXIST)

    storage = PosixStorage(str(tmp_path), syscalls=LosesReply())
    assert storage.create("steps/1", data) is holds
    assert files_in(tmp_path) == ["steps/1"]


def test_put_and_replace_after_a_lost_reply(tmp_path: Path) -> None:
    class LosesReply(Syscalls):
        def link(self, source: str, target: str) -> None:
            super().link(source, target)
            raise failing(errno.EEXIST)

        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            if not source.endswith(target):
                raise failing(errno.ENOENT)

    storage = PosixStorage(str(tmp_path), policy=AT_ONCE, syscalls=LosesReply())
    storage.replace("lease", b"new")
    assert files_in(tmp_path) == ["lease"]
    assert storage.counters.retries == 0


def test_put_never_overwrites(tmp_path: Path) -> None:
    storage = PosixStorage(str(tmp_path))
    storage.put("pack", [b"first"])
    for other in (b"other", b"first and more", b""):
        with pytest.raises(StoreError, match="another object"):
            storage.put("pack", [other])
    assert storage.get("pack") == b"first"
    assert files_in(tmp_path) == ["pack"]


def test_a_file_that_was_removed_while_it_was_written(tmp_path: Path) -> None:
    """NFSv4 reports nothing; only the name shows it."""

    class Removes(Syscalls):
        left = 1

        def close(self, fd: int) -> None:
            super().close(fd)
            for path in tmp_path.glob(".*.tmp"):
                if self.left:
                    self.left -= 1
                    path.unlink()

    storage = PosixStorage(str(tmp_path), policy=AT_ONCE, syscalls=Removes())
    storage.put("pack", [b"data"])
    assert storage.get("pack") == b"data"
    assert storage.counters.retries == 1


def test_a_file_that_was_replaced_while_it_was_written(tmp_path: Path) -> None:
    class Replaces(Syscalls):
        left = 1

        def open(self, path: str) -> int:
            if path.endswith(".tmp") and self.left:
                self.left -= 1
                Path(f"{path}x").write_bytes(b"elsewhere")
                Path(f"{path}x").rename(path)
            return super().open(path)

    storage = PosixStorage(str(tmp_path), policy=AT_ONCE, syscalls=Replaces())
    storage.put("pack", [b"data"])
    assert storage.get("pack") == b"data"
    assert storage.counters.retries == 1


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLinks(Syscalls):
        def link(self, source: str, target: str) -> None:
            raise failing(errno.EPERM)

    monkeypatch.setattr("checkpointing.storage.exclusive_create._MARGIN_S", 0.0)
    storage = PosixStorage(str(tmp_path), syscalls=NoLinks())
    storage.put("pack", [b"data"])
    assert storage.get("pack") == b"data"
    assert storage.create("manifest", b"mine") is True
    assert storage.create("manifest", b"other") is False
    assert files_in(tmp_path) == ["manifest", "pack"]


@pytest.mark.parametrize("call", ["scandir", "stat"])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_list_outlives(tmp_path: Path, call: str, number: int) -> None:
    storage, calls = storage_with(tmp_path)
    storage.put("a/b", [b"data"])
    calls.faults[call] = [failing(number)]
    assert [entry.key for entry in storage.list("")] == ["a/b"]
    assert storage.counters.retries == 1


@pytest.mark.parametrize("call", ["open", "preadv"])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_read_outlives(tmp_path: Path, call: str, number: int) -> None:
    storage, calls = storage_with(tmp_path)
    storage.put("a/b", [b"data"])
    calls.faults[call] = [failing(number)]
    assert storage.get("a/b") == b"data"
    assert storage.counters.retries == 1


def test_folders_that_somebody_removed_are_made_again(tmp_path: Path) -> None:
    storage = PosixStorage(str(tmp_path / "store"), policy=AT_ONCE)
    storage.put("packs/aa/1", [b"x"])
    shutil.rmtree(tmp_path / "store")
    storage.put("packs/aa/2", [b"x"])
    assert files_in(tmp_path / "store") == ["packs/aa/2"]


def test_a_file_in_place_of_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "packs").write_text("not a folder")
    with pytest.raises(StoreError, match=r"packs/1: Not a directory"):
        PosixStorage(str(tmp_path)).put("packs/1", [b"x"])


def test_only_objects_are_listed(tmp_path: Path) -> None:
    storage = PosixStorage(str(tmp_path))
    storage.put("a/b", [b"x"])
    for name in (".b.0123456789abcdef.tmp", ".nfs000000000012", "with space", "a~1"):
        (tmp_path / "a" / name).touch()
    assert [entry.key for entry in storage.list("")] == ["a/a~1", "a/b"]
    with pytest.raises(ValueError, match="temporary files"):
        storage.put(".b.0123456789abcdef.tmp", [b""])


def test_temporaries_of_crashed_writers_are_swept(tmp_path: Path) -> None:
    storage = PosixStorage(str(tmp_path / "store"))
    assert isinstance(storage, SupportsTemporaryRemoval)
    assert storage.sweep_temporaries(0) == 0
    storage.put("a/b", [b"x"])
    old, new = (tmp_path / f"store/a/.b.{n * 16}.tmp" for n in "01")
    for path in (old, new):
        path.touch()
    os.utime(old, (1e9, 1e9))
    assert storage.sweep_temporaries(3600) == 1
    assert not old.exists()
    assert new.exists()
    assert storage.get("a/b") == b"x"


def test_permissions_are_those_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        PosixStorage(str(tmp_path / "store")).put("a/b", [b"x"])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "store/a/b").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "store/a").stat().st_mode) == 0o750


def test_delete_makes_each_folder_durable_once(tmp_path: Path) -> None:
    storage, calls = storage_with(tmp_path)
    for n in range(5):
        storage.put(f"a/{n}", [b"x"])
    calls.made.clear()
    storage.delete(f"a/{n}" for n in range(5))
    assert [name for name, _ in calls.made].count("fsync") == 1
    assert calls.made[-1][0] == "close"


def test_many_threads_make_the_same_folders(tmp_path: Path) -> None:
    storage = PosixStorage(str(tmp_path / "new/store"))
    start = threading.Barrier(12)

    def put(n: int) -> None:
        start.wait()
        for turn in range(5):
            storage.put(f"a/{turn}/b/{n}", [b"x"])

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(put, range(12)))
    assert len(storage.list("")) == 60


def race(root: str, writer: int, rounds: int, start: Barrier) -> list[bool]:
    storage, won = PosixStorage(root), []
    for turn in range(rounds):
        start.wait()
        won.append(storage.create(f"race/{turn}", b"%d" % writer))
    return won


def test_of_many_processes_one_wins(tmp_path: Path) -> None:
    writers, rounds = 6, times(30)
    context = fork_server()
    with context.Manager() as manager, context.Pool(writers) as pool:
        start = manager.Barrier(writers)
        arguments = [(str(tmp_path), writer, rounds, start) for writer in range(writers)]
        won = pool.starmap(race, arguments, chunksize=1)
    storage = PosixStorage(str(tmp_path))
    for turn in range(rounds):
        winners = [writer for writer in range(writers) if won[writer][turn]]
        assert [b"%d" % writer for writer in winners] == [storage.get(f"race/{turn}")]


class Remembers(Syscalls):
    """As an NFS client: that there was no file of a name is remembered until the directory above
    is opened, and what is under such a name is not there either."""

    def __init__(self) -> None:
        self.missing: set[str] = set()

    def _look(self, path: str) -> None:
        names = [path, *map(str, Path(path).parents)]
        for name in reversed(names):
            if name in self.missing:
                raise failing(errno.ENOENT)
            if not os.path.lexists(name):
                self.missing.add(name)

    def _opened(self, path: str) -> None:
        self._look(path)
        self.missing = {name for name in self.missing if str(Path(name).parent) != path}

    def open(self, path: str) -> int:
        self._look(path)
        return super().open(path)

    def open_dir(self, path: str) -> int:
        self._opened(path)
        return super().open_dir(path)

    def scandir(self, path: str) -> list[tuple[str, bool]]:
        self._opened(path.rstrip("/"))
        return super().scandir(path)


@pytest.mark.parametrize("asked", ["", "a/", "a/b/"])
def test_what_another_machine_made_is_seen_at_once(tmp_path: Path, asked: str) -> None:
    reader = PosixStorage(str(tmp_path / "store"), syscalls=Remembers())
    writer = PosixStorage(str(tmp_path / "store"))
    for key in ("a/b/1", "a/b/2", "a/c", "d"):
        with pytest.raises(FileNotFoundError):
            reader.get(key)
        reader.list(asked)
        writer.put(key, [b"data"])
        wanted = [entry.key for entry in writer.list(asked)]
        assert [entry.key for entry in reader.list(asked)] == wanted
        assert reader.get(key) == b"data"
        with pytest.raises(FileNotFoundError):
            reader.get_range(f"{key}x", 0, 1)
        writer.put(f"{key}x", [b"data"])
        assert bytes(reader.get_range(f"{key}x", 0, 4)) == b"data"
