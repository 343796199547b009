"""Building: what is used again, where sidecars lie, tokens, URLs, and all errors at once."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import TokenFiles, open_dataset
from data.errors import DataError, IndexFileError, IndexingError, ShardError
from data.index.dataset_verification import verify
from data.index.index_build import build_index, read_index
from data.index.manifest import NAME, open_manifest
from data.index.shard import shard_scan, sidecar
from data.index.shard.shard_index import ShardIndex
from data.index.shard.shard_scan import StreamedShardIndexer, scan_shard, shard_index
from data.index.shard_listing import Shards, checked_shards, list_shards
from data.source.protocol import ObjectVersion
from tests.unit.data.tars import Files, by_index, tar_bytes, write_tar


class Scans:
    """How many shards were really scanned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        real = shard_scan._scan

        def counted(shard: str, *rest: object) -> object:
            self.seen.append(Path(shard).name)
            return real(shard, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(shard_scan, "_scan", counted)

    def take(self) -> list[str]:
        seen, self.seen = sorted(self.seen), []
        return seen


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Scans:
    return Scans(monkeypatch)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Store:
    """URLs in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.reads = 0

    def stat(self, url: str) -> ObjectVersion:
        if url not in self.files:
            raise DataError(f"{url} is not there")
        return ObjectVersion(bytes=len(self.files[url]), tag=f"etag{hash(self.files[url])}")

    def read(self, url: str, start: int, size: int, tag: object) -> bytes:
        self.reads += 1
        return self.files[url][start : start + size]

    def stream(self, url: str, start: int, tag: str | None) -> Iterator[bytes]:
        raise AssertionError("an index is made of headers")

    def get(self, url: str) -> bytes:
        return self.read(url, 0, self.stat(url).bytes or 0, None)


def scan_shard_of(content: bytes) -> ShardIndex:
    indexer = StreamedShardIndexer("s.tar")
    indexer.feed(content)
    return indexer.finish()


def fill(folder: Path, count: int = 4) -> Path:
    folder.mkdir(exist_ok=True)
    for n in range(count):
        write_tar(folder / f"s-{n}.tar", [(f"{n}.txt", b"x" * n), (f"{n}.json", b'{"n": 7}')])
    return folder


def test_only_new_and_changed_shards_are_scanned(tmp_path: Path, scans: Scans) -> None:
    folder = fill(tmp_path / "d")
    first = build_index(folder)
    assert scans.take() == [f"s-{n}.tar" for n in range(4)]
    assert (len(first), first.total_samples, first.place) == (4, 4, folder / NAME)
    assert build_index(folder).fingerprint == first.fingerprint
    assert scans.take() == []
    write_tar(folder / "s-4.tar", [("new.txt", b"")])
    write_tar(folder / "s-1.tar", [("other.txt", b"")])
    (folder / "s-2.tar.index").unlink()
    found = build_index(folder)
    assert scans.take() == ["s-1.tar", "s-2.tar", "s-4.tar"]
    assert [found.open_shard(i).key(0) for i in range(5)] == ["0", "other", "2", "3", "new"]


def test_without_the_manifest_the_sidecars_are_used(tmp_path: Path, scans: Scans) -> None:
    folder = fill(tmp_path / "d")
    first = build_index(folder).fingerprint
    scans.take()
    (folder / NAME).write_bytes(b"damaged")
    assert build_index(folder).fingerprint == first
    assert scans.take() == []


def test_broken_sidecars_are_made_anew(
    tmp_path: Path, scans: Scans, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"")])
    shard_index(path)
    whole = (tmp_path / "s.tar.index").read_bytes()
    scans.take()
    for content in (b"", whole[:-1], b"{}"):
        (tmp_path / "s.tar.index").write_bytes(content)
        assert shard_index(path).key(0) == "a"
        assert scans.take() == ["s.tar"]
        assert "cannot be used and is rebuilt" in caplog.text
        assert (tmp_path / "s.tar.index").read_bytes() == whole


def test_a_copy_with_another_time_keeps_its_index(tmp_path: Path, scans: Scans) -> None:
    path = write_tar(tmp_path / "s.tar", [(f"{n}.txt", b"x") for n in range(50)])
    shard_index(path, hash=True)
    scans.take()
    os.utime(path, (1, 1))
    assert shard_index(path).hash is not None
    assert scans.take() == []
    write_tar(path, [(f"{n + 1}.txt", b"x") for n in range(50)])  # as long
    os.utime(path, (1, 1))
    assert shard_index(path).key(0) == "1"
    assert scans.take() == ["s.tar"]


@pytest.mark.parametrize(("before", "after"), [(0, 3), (2, 3), (3, 2), (12, 15)])
def test_a_shard_that_was_written_again_with_more_samples_is_indexed_again(
    tmp_path: Path, scans: Scans, before: int, after: int
) -> None:
    path = write_tar(tmp_path / "s.tar", [(f"{n}.txt", b"x") for n in range(before)])
    size = path.stat().st_size
    shard_index(path)
    scans.take()
    write_tar(path, [(f"{n}.txt", b"x") for n in range(after)])
    os.utime(path, (1, 1))
    assert path.stat().st_size == size, "a tar is filled up to a multiple of 10 KiB"
    assert len(shard_index(path)) == after
    assert scans.take() == ["s.tar"]


def test_where_the_folder_cannot_be_written_the_index_folder_is_used(
    tmp_path: Path, scans: Scans
) -> None:
    path = write_tar(tmp_path / "s.tar", [("a.txt", b"")])
    (tmp_path / "s.tar.index").mkdir()  # not writable, even for root
    for folder in (tmp_path / "mine", None):
        for _ in range(2):
            assert len(shard_index(path, index_folder=folder)) == 1
        assert scans.take() == ["s.tar"]
        made = list((folder or sidecar.default_folder()).iterdir())
        assert len(made) == 1
        assert made[0].parent.stat().st_mode & 0o777 == 0o700
        write_tar(path, [("b.txt", b"")])
        os.utime(path, (5, 5))


def test_all_errors_come_together_and_the_others_are_done(tmp_path: Path, scans: Scans) -> None:
    folder = fill(tmp_path / "d", 30)
    for n in range(25):
        (folder / f"s-{n}.tar").write_bytes(b"no tar" * 100)
    with pytest.raises(IndexingError, match=r"25 of 30 shards") as caught:
        build_index(folder)
    assert len(caught.value.errors) == 25
    text = str(caught.value)
    assert text.count("not a tar file") == 20
    assert "and 5 more" in text
    assert not (folder / NAME).exists()
    scans.take()
    for n in range(25):
        (folder / f"s-{n}.tar").unlink()
    assert len(build_index(folder)) == 5
    assert scans.take() == []


def test_what_a_killed_writer_left_long_ago_is_removed(tmp_path: Path) -> None:
    folder = fill(tmp_path / "d", 1)
    kept = [".s-0.tar.index.mine", f"s-0.tar.index.{'0' * 32}", f".s-0.tar.index.{'1' * 32}"]
    for name in [*kept, f".s-0.tar.index.{'0' * 32}"]:
        (folder / name).write_bytes(b"")
        if not name.endswith("1" * 32):
            os.utime(folder / name, (1, 1))
    build_index(folder)
    assert {path.name for path in folder.iterdir()} == {*kept, "s-0.tar", "s-0.tar.index", NAME}


def test_progress_counts_shards(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    folder = fill(tmp_path / "d", 3)
    build_index(folder, progress=lambda *n: seen.append(n))
    build_index(folder, progress=lambda *n: seen.append(n))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3), (3, 3)]


def test_a_hash_is_added_when_it_is_asked_for(tmp_path: Path, scans: Scans) -> None:
    from blake3 import blake3

    folder = fill(tmp_path / "d", 2)
    first = build_index(folder)
    assert first.hash(0) is None
    scans.take()
    found = build_index(folder, hash=True)
    assert scans.take() == ["s-0.tar", "s-1.tar"]
    assert found.hash(1) == blake3((folder / "s-1.tar").read_bytes()).hexdigest()
    assert found.fingerprint == first.fingerprint
    assert build_index(folder).hash(1) == found.hash(1)
    assert scans.take() == []


def npy(*shape: int) -> bytes:
    made = io.BytesIO()
    np.save(made, np.zeros(shape, np.uint16))
    return made.getvalue()


def lengths(sample: Mapping[str, bytes]) -> int:
    return sum(map(len, sample.values()))


def test_tokens_are_counted(tmp_path: Path, scans: Scans) -> None:
    files: Files = [
        *[("a.npy", npy(5)), ("a.bin", b"1234"), ("a.json", b'{"n": 3}')],
        *[("b.npy", npy(2, 3)), ("b.bin", b""), ("b.json", b'{"n": 0}')],
    ]
    path = write_tar(tmp_path / "s.tar", files)
    for way, counts in (("npy", [5, 6]), ("bin:uint16", [2, 0]), ("json:n", [3, 0])):
        found = build_index(path, tokens=way)
        assert scans.take() == ["s.tar"]
        assert found.tokens == way
        assert found.n_tokens is not None
        assert found.n_tokens.tolist() == [sum(counts)]
        index = found.open_shard(0)
        assert index.n_tokens is not None
        assert index.n_tokens.tolist() == counts
        assert build_index(path, tokens=way).tokens == way
        assert scans.take() == []
    index = scan_shard(path, tokens=lengths)
    assert index.n_tokens is not None
    assert index.n_tokens.tolist() == [len(npy(5)) + 12, len(npy(2, 3)) + 8]
    assert index.tokens == f"{__name__}.lengths"


@pytest.mark.parametrize(
    ("member", "content", "way"),
    [
        ("a.npy", b"no array", "npy"),
        ("a.txt", b"", "npy"),
        ("a.bin", b"123", "bin:uint16"),
        ("a.json", b"{", "json:n"),
        ("a.json", b"[]", "json:n"),
        ("a.json", b'{"n": "3"}', "json:n"),
        ("a.json", b'{"n": -1}', "json:n"),
        ("a.json", b'{"n": 4294967296}', "json:n"),
    ],
)
def test_tokens_that_cannot_be_counted_are_named(
    tmp_path: Path, member: str, content: bytes, way: str
) -> None:
    path = write_tar(tmp_path / "s.tar", [(member, content)])
    with pytest.raises(ShardError, match=r"s\.tar, offset 512: sample 'a': "):
        scan_shard(path, tokens=way)


@pytest.mark.parametrize("way", ["", "bin", "bin:float", "json", "json:", "npy:x", "x"])
def test_ways_of_counting_are_checked(tmp_path: Path, way: str) -> None:
    with pytest.raises(DataError, match="expected npy, bin:uint16"):
        build_index(fill(tmp_path / "d"), tokens=way)


def test_urls_are_read_from_a_source(tmp_path: Path, scans: Scans) -> None:
    files: Files = [(f"{n}.txt", b"x" * 5_000_000) for n in range(3)]
    urls = [f"mem://bucket/a/s-{n}.tar" for n in range(2)]
    store = Store({url: tar_bytes(files) for url in urls})
    out = tmp_path / "d.index"
    found = build_index("mem://bucket/a/s-{0..1}.tar", out, source=store)
    assert store.reads < 20
    assert list(found.urls) == urls
    local = write_tar(tmp_path / "s.tar", files)
    assert by_index(found.open_shard(1, source=store)) == by_index(scan_shard(local))
    scans.take()
    assert build_index(urls, out, source=store).fingerprint == found.fingerprint
    assert scans.take() == []
    store.files[urls[1]] = tar_bytes([("a.txt", b"")])
    assert build_index(urls, out, source=store).samples.tolist() == [3, 1]
    assert scans.take() == ["s-1.tar"]
    with pytest.raises(DataError, match="give the place to write the manifest"):
        build_index(urls, source=store)
    del store.files[urls[0]]
    with pytest.raises(IndexingError, match=r"1 of 2 shards.*\n.*s-0\.tar is not there"):
        build_index(urls, tmp_path / "e.index", source=store)


def test_a_dataset_that_was_uploaded_brings_its_indexes(tmp_path: Path, scans: Scans) -> None:
    folder = fill(tmp_path / "d", 2)
    first = build_index(folder)
    store = Store({f"mem://b/d/{path.name}": path.read_bytes() for path in folder.iterdir()})
    scans.take()
    found = open_manifest("mem://b/d/dataset.index", source=store)
    assert found.fingerprint == first.fingerprint
    assert [found.open_shard(i, source=store).key(0) for i in range(2)] == ["0", "1"]
    assert scans.take() == []


def test_the_index_of_a_signed_url_has_the_query_after_its_name(scans: Scans) -> None:
    tar, signed = tar_bytes([("1.txt", b"x")]), "http://host/d/s-0.tar?sig=a/b"
    index = sidecar.to_bytes(scan_shard_of(tar))
    scans.take()
    store = Store({signed: tar, "http://host/d/s-0.tar.index?sig=a/b": index})
    assert read_index([signed], source=store).total_samples == 1
    assert scans.take() == []
    assert sidecar.beside("s3://bucket/s-0?.tar") == "s3://bucket/s-0?.tar.index"


def test_a_manifest_at_a_signed_url(tmp_path: Path) -> None:
    folder = fill(tmp_path / "d", 2)
    build_index(folder)
    url = "https://host/d/dataset.index?sig=a/b"
    store = Store({url: (folder / NAME).read_bytes()})
    assert list(open_manifest(url, source=store).urls) == [
        f"https://host/d/s-{n}.tar" for n in "01"
    ]


def test_broken_shards_are_left_out_where_that_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = fill(tmp_path / "d", 4)
    whole = read_index([folder / f"s-{n}.tar" for n in (0, 3)])
    (folder / "s-1.tar").write_bytes(b"no tar" * 100)
    write_tar(folder / "s-2.tar", [("2.txt", b""), ("2.txt", b"")])  # an extension twice
    with pytest.raises(IndexingError, match="2 of 4"):
        read_index(folder)
    for workers in (1, 2):
        assert (
            read_index(folder, workers=workers, skip_broken=True).fingerprint == whole.fingerprint
        )
    assert "a broken shard is left out" in caplog.text
    assert f"{folder}/s-2.tar" in caplog.text
    (folder / "s-3.tar").unlink()
    (folder / "s-3.tar").symlink_to(tmp_path / "gone")  # it may be readable on another node
    with pytest.raises(IndexingError, match="3 of 4"):
        read_index(folder, skip_broken=True)
    with pytest.raises(IndexingError, match="2 of 2"):
        read_index([folder / f"s-{n}.tar" for n in (1, 2)], skip_broken=True)


@pytest.mark.parametrize("pattern", ["s-{0..1}.tar", "s-*.tar", "s-[01].tar", "s-0.tar"])
def test_a_folder_whose_name_has_brackets(tmp_path: Path, pattern: str) -> None:
    folder = fill(tmp_path / "lr=[1,2]", 2)
    fill(tmp_path / "lr=1", 2)
    found = list_shards(f"{folder}/{pattern}")
    assert found == [f"{folder}/s-{n}.tar" for n in ("0" if pattern == "s-0.tar" else "01")]
    assert len(list_shards(f"{tmp_path}/lr=[0-9]/*.tar")) == 2  # no folder has this name
    (folder / "s-[9].tar").symlink_to("s-0.tar")
    assert list_shards(f"{folder}/s-[9].tar") == [f"{folder}/s-[9].tar"]


def test_brackets_in_urls() -> None:
    for url in ("s3://bucket/lr=[1,2]/s.tar", "http://[::1]:80/s.tar", "http://h/s.tar?a=[0-9]*"):
        assert list_shards(url) == [url]


def test_no_error_of_a_listing_shows_a_secret(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    for shards in (
        [str(tmp_path / "x.jsonl"), "https://h/s.tar?X-Amz-Signature=abcdef"],
        "https://me:abcdef@h/s-{2..1}.tar",
        "https://me:abcdef@h/folder/*.tar",
        "https://h/x.jsonl?X-Amz-Signature=abcdef",
        "https://h/x.parquet?X-Amz-Signature=abcdef",
        "https://h/x.bin?X-Amz-Signature=abcdef",
    ):
        assert "abcdef" not in refusal(shards)
    signed = "https://h/s.tar?X-Amz-Signature=abcdef"
    assert "abcdef" not in refusal(signed, rows=True)
    assert "abcdef" not in refusal(signed, token_files=TokenFiles(dtype="uint32"))


def refusal(shards: Shards, **options: Any) -> str:
    """What is said of shards at the host h that cannot be opened."""
    with pytest.raises(DataError, match="h/") as caught:
        open_dataset(shards, **options)
    return str(caught.value)


def test_one_object_signed_twice_is_given_twice() -> None:
    url = "https://h/s.tar?X-Amz-Signature="
    with pytest.raises(DataError, match=r"shard https://h/s\.tar\?… is given twice"):
        list_shards([f"{url}1", f"{url}2"])
    assert len(list_shards(["https://h/s.tar?part=1", "https://h/s.tar?part=2"])) == 2


@pytest.mark.parametrize("scheme", ["file://", "FILE://", "file://localhost", "local://"])
def test_a_file_url_is_its_path(tmp_path: Path, scheme: str) -> None:
    folder = fill(tmp_path / "a b#?", 2)
    url = f"{scheme}{tmp_path}/a%20b%23%3F"
    assert list_shards(url) == list_shards(f"{url}/s-{{0..1}}.tar") == list_shards(folder)
    assert checked_shards([url]) == [str(folder)]
    with pytest.raises(DataError, match="the host 'other' in a file URL"):
        list_shards("file://other/x.tar")


def test_hidden_files_of_a_folder_are_no_shards(tmp_path: Path) -> None:
    folder = fill(tmp_path / "d", 2)
    (folder / "._s-0.tar").write_bytes(b"of macOS")
    assert list_shards(folder) == [f"{folder}/s-0.tar", f"{folder}/s-1.tar"]


def test_energon_s_list_is_taken_over(tmp_path: Path) -> None:
    folder = fill(tmp_path / "d", 3)
    (folder / "part").mkdir()
    shutil.move(folder / "s-0.tar", folder / "part/s-0.tar")
    (folder / ".nv-meta").mkdir()
    counts = {"s-2.tar": 1, "part/s-0.tar": 1}
    info = folder / ".nv-meta/.info.json"
    info.write_text(json.dumps({"shard_counts": counts}))
    found = build_index(folder, folder)
    assert list(found.urls) == [f"{folder}/s-2.tar", f"{folder}/part/s-0.tar"]
    info.unlink()
    (folder / ".nv-meta/.info.yaml").write_text("shard_counts:\n  s-1.tar: 1\n")
    assert list(build_index(folder).urls) == [f"{folder}/s-1.tar"]
    for broken in ("shard_counts: []", "x: !!python/object:os.system", "[", "shard_counts: {a: b}"):
        (folder / ".nv-meta/.info.yaml").write_text(broken)
        with pytest.raises(DataError, match="cannot be read"):
            build_index(folder)


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    folder = fill(tmp_path / "d", 2)
    for shards, problem in (
        ([], "no shards given"),
        (tmp_path / "none-*.tar", "nothing matches"),
        ([folder, folder / "s-1.tar"], "given twice"),
        ("s3://bucket/*.tar", "give a range"),
        ("http://[::1]/s-[0-9].tar", "give a range"),
        ("s3://bucket/folder/", "give a range"),
    ):
        with pytest.raises(DataError, match=problem):
            build_index(shards, tmp_path / "x.index")
    with pytest.raises(IndexFileError, match="choose another place"):
        build_index(folder, folder / "s-1.tar" / "x.index")


def test_verify_says_what_differs(tmp_path: Path) -> None:
    folder = fill(tmp_path / "d", 6)
    build_index(folder, hash=True)
    assert [verdict.problem for verdict in verify(folder, full=True)] == [None] * 6
    (folder / "s-0.tar").unlink()
    write_tar(folder / "s-1.tar", [("1.txt", b"x" * 20_000)])
    write_tar(folder / "s-2.tar", [("2.txt", b"xxx"), ("2.json", b'{"n": 7}')])
    content = bytearray((folder / "s-3.tar").read_bytes())
    content[512] ^= 1
    (folder / "s-3.tar").write_bytes(content)
    content = bytearray((folder / "s-4.tar").read_bytes())
    content[0] ^= 1
    (folder / "s-4.tar").write_bytes(content)
    shutil.copy(folder / "s-4.tar.index", folder / "s-5.tar.index")
    quick = [verdict.problem for verdict in verify(folder)]
    full = [verdict.problem for verdict in verify(folder, full=True)]
    said = [
        "cannot be read",
        "has 30720 bytes, but had 10240",
        "txt of 3 bytes, json of 8 bytes, but had txt of 2 bytes",
        None,
        "offset 0: not a tar file",
        "its index does not fit it",
    ]
    for found, part in zip(quick, said, strict=True):
        assert found is part or (found and part and part in found)
    assert full[3] is not None
    assert "BLAKE3 differs" in full[3]
    assert full[:3] + full[4:] == quick[:3] + quick[4:]
