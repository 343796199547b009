"""What every storage must do, over all backends: the same cases for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from checkpointing.errors import DamagedError
from checkpointing.storage import Buffer, Storage, open_storage
from checkpointing.storage.fsspec.call_deadlines import FsspecCalls
from checkpointing.storage.fsspec.fsspec_storage import DriverTraits, FsspecStorage
from tests.effort import some, times
from tests.services.ceph import CephServer
from tests.services.s3 import S3Place, S3Server

Reopen = Callable[[], Storage]  # another storage on the same place, as another process has it

BACKENDS = ["posix", "memory", "fsspec"]
BACKENDS += [
    f"{client}-{server}" for client in ("obstore", "s3fs") for server in ("ministack", "ceph")
]


@pytest.fixture(params=BACKENDS)
def reopen(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reopen]:
    opened: list[Storage] = []
    url, options = str(tmp_path / "store"), {}
    if request.param == "fsspec":
        monkeypatch.setattr("checkpointing.storage.exclusive_create._MARGIN_S", 0.0)
    if request.param == "memory":
        url = f"memory:/{tmp_path}"
    elif request.param not in ("posix", "fsspec"):
        client, _, name = request.param.partition("-")
        server: S3Server = request.getfixturevalue(f"{name}_server")
        place = server.new_place()
        url, options = place.url, {**place.options, "client": client}

    def open_one() -> Storage:
        if request.param == "fsspec":
            opened.append(of_a_plain_driver(url))
        else:
            opened.append(open_storage(url, options=options))
        return opened[-1]

    yield open_one
    for storage in opened:
        storage.close()


def of_a_plain_driver(root: str) -> Storage:
    """By a driver without coroutines, whose writes can be seen half done and which has no
    exclusive create."""
    traits = DriverTraits(whole=False, exclusive=False, write={}, read={})
    calls = FsspecCalls(lambda: LocalFileSystem(skip_instance_cache=True))
    return FsspecStorage(calls, root, f"plain://{root}", traits)


@pytest.fixture
def storage(reopen: Reopen) -> Storage:
    return reopen()


def keys(storage: Storage, prefix: str = "") -> list[str]:
    return [entry.key for entry in storage.list(prefix)]


def test_put_and_get(storage: Storage) -> None:
    pieces: list[Buffer] = [b"abc", bytearray(b"def"), memoryview(b"xghi")[1:], b""]
    storage.put("packs/0a/x.pack", pieces * 700)
    assert storage.get("packs/0a/x.pack") == b"abcdefghi" * 700
    assert isinstance(storage.get("packs/0a/x.pack"), bytes)


def test_wide_elements_are_put_as_bytes(storage: Storage) -> None:
    wide: Buffer = memoryview(b"12345678").cast("Q")
    storage.put("wide", [wide])
    assert storage.get("wide") == b"12345678"


def test_empty_objects(storage: Storage) -> None:
    storage.put("empty/none", [])
    storage.put("empty/nothing", [b""])
    assert storage.create("empty/made", b"")
    assert [(e.key, e.size) for e in storage.list("empty/")] == [
        ("empty/made", 0),
        ("empty/none", 0),
        ("empty/nothing", 0),
    ]
    assert storage.get("empty/none") == b""


def test_large_objects_are_put_whole(storage: Storage) -> None:
    pieces = [bytes([n]) * (1 << 20) for n in range(9)]
    storage.put("large", pieces)
    assert storage.get("large") == b"".join(pieces)
    start, length = (2 << 20) - 5, 5 << 20
    assert bytes(storage.get_range("large", start, length)) == b"".join(pieces)[start:][:length]


def test_a_second_put_of_the_same(storage: Storage) -> None:
    storage.put("packs/a", [b"one", b"two"])
    storage.put("packs/a", [b"onetwo"])
    assert storage.get("packs/a") == b"onetwo"


def test_missing_objects(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.get("nothing/here")
    with pytest.raises(FileNotFoundError):
        storage.get_range("nothing/here", 0, 1)
    with pytest.raises(FileNotFoundError):
        storage.get_range("nothing/here", 0, 0)
    storage.put("folder/object", [b"x"])
    with pytest.raises(FileNotFoundError):
        storage.get("folder")
    assert storage.list("nothing/") == []


def test_ranges(storage: Storage) -> None:
    storage.put("object", [b"0123456789"])
    assert bytes(storage.get_range("object", 0, 10)) == b"0123456789"
    assert bytes(storage.get_range("object", 3, 4)) == b"3456"
    assert bytes(storage.get_range("object", 9, 1)) == b"9"
    assert bytes(storage.get_range("object", 10, 0)) == b""


@pytest.mark.parametrize(("start", "length"), [(0, 11), (9, 2), (10, 1), (11, 0), (99, 5)])
def test_a_range_beyond_the_end_is_damage(storage: Storage, start: int, length: int) -> None:
    storage.put("object", [b"0123456789"])
    with pytest.raises(DamagedError, match="object"):
        storage.get_range("object", start, length)


def test_replace(storage: Storage) -> None:
    for data in (b"first", b"second and longer", b""):
        storage.replace("leases/1", data)
        assert storage.get("leases/1") == data
    assert keys(storage) == ["leases/1"]


def test_create_makes_one(storage: Storage) -> None:
    assert storage.create("steps/1.manifest", b"mine") is True
    assert storage.create("steps/1.manifest", b"mine") is True
    assert storage.create("steps/1.manifest", b"other") is False
    assert storage.get("steps/1.manifest") == b"mine"
    storage.delete(["steps/1.manifest"])
    assert storage.create("steps/1.manifest", b"other") is True
    assert keys(storage) == ["steps/1.manifest"]


def test_list(storage: Storage) -> None:
    for key in ("b/2", "a/x/1", "a", "a-b/1", "a/y", "b/10", "z~1._-A"):
        if key != "a":  # a file system has no object and folder of one name
            storage.put(key, [key.encode()])
    assert keys(storage) == sorted(["b/2", "a/x/1", "a-b/1", "a/y", "b/10", "z~1._-A"])
    assert keys(storage, "a/") == ["a/x/1", "a/y"]
    assert keys(storage, "a/x/") == ["a/x/1"]
    assert [entry.size for entry in storage.list("b/")] == [4, 3]


def test_modified_follows_the_order_of_writes(storage: Storage) -> None:
    storage.put("first", [b"x"])
    storage.put("second", [b"x"])
    first, second = storage.list("")
    assert 1.6e9 < first.modified <= second.modified


MANY = [f"many/{n:04d}" for n in range(1003)]
"""More than the thousand that S3 lists and deletes at a time."""


def put_many(storage: Storage) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: storage.put(name, [b"1"]), MANY))


@pytest.mark.parametrize(
    "reopen",
    some(["posix", "memory", "fsspec", "obstore-ministack"], ["s3fs-ministack"]),
    indirect=True,
)
def test_a_long_list_is_complete(reopen: Reopen) -> None:
    storage = reopen()
    put_many(storage)
    assert keys(storage, "many/") == MANY
    storage.delete(MANY[:-2])
    assert keys(storage, "many/") == MANY[-2:]


@pytest.fixture(scope="module")
def of_many(ceph_server: CephServer) -> S3Place:
    """With many objects, as they take long to make."""
    place = ceph_server.new_place()
    storage = open_storage(place.url, options=place.options)
    put_many(storage)
    storage.close()
    return place


@pytest.mark.parametrize("client", ["obstore", "s3fs"])
def test_a_long_list_of_a_bucket_is_complete(client: str, of_many: S3Place) -> None:
    """And of as many to delete, of which but the last one are not there, that one is deleted."""
    storage = open_storage(of_many.url, options={**of_many.options, "client": client})
    assert keys(storage, "many/") == MANY
    names = [f"few/{n:04d}" for n in range(len(MANY))]
    storage.put(names[-1], [b"1"])
    storage.delete(names)
    assert keys(storage, "few/") == []
    storage.close()


def test_delete(storage: Storage) -> None:
    storage.put("a/1", [b"1"])
    storage.put("a/2", [b"2"])
    storage.delete(iter(["a/1", "a/none", "none/1"]))
    storage.delete(["a/1"])
    storage.delete([])
    assert keys(storage) == ["a/2"]


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/../b", ".", "a b", "ä", "a\n", "a\\b"])
def test_what_is_no_key(storage: Storage, key: str) -> None:
    for use in (
        lambda: storage.put(key, [b""]),
        lambda: storage.create(key, b""),
        lambda: storage.replace(key, b""),
        lambda: storage.get(key),
        lambda: storage.get_range(key, 0, 1),
        lambda: storage.delete([key]),
        lambda: storage.list(f"{key}x"),
    ):
        with pytest.raises(ValueError):
            use()


def test_all_openers_see_one_place(reopen: Reopen) -> None:
    one, other = reopen(), reopen()
    one.put("object", [b"data"])
    assert other.get("object") == b"data"
    assert one.url == other.url


def test_of_many_creators_one_wins(reopen: Reopen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve at the same moment, half of them with the same content, through two storages."""
    # a claim must be written within the margin; on a busy machine a thread needs more time for it
    monkeypatch.setattr("checkpointing.storage.exclusive_create._MARGIN_S", 1.0)
    storages, writers = [reopen(), reopen()], 12
    barrier = threading.Barrier(writers)

    def create(writer: int, key: str) -> bool:
        barrier.wait()
        return storages[writer % 2].create(key, _content(writer))

    with ThreadPoolExecutor(writers) as pool:
        rounds = 3 if storages[0].url.startswith("plain://") else times(6)  # claims take seconds
        for turn in range(rounds):
            key = f"race/{turn}"
            said = list(pool.map(create, range(writers), [key] * writers))
            held = storages[0].get(key)
            assert said == [_content(writer) == held for writer in range(writers)]
    assert len(keys(storages[0])) == rounds


def _content(writer: int) -> bytes:
    return f"content {writer // 2}".encode() * 1000


def test_readers_see_the_old_or_the_new(storage: Storage) -> None:
    contents = [bytes([n]) * 50_000 for n in (1, 2)]
    storage.replace("lease", contents[0])
    stop = threading.Event()

    def write() -> None:
        for turn in range(30):
            storage.replace("lease", contents[turn % 2])
        stop.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not stop.is_set():
            assert storage.get("lease") in contents
        writing.result()
