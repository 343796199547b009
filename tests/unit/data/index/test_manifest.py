"""The manifest: rows come back, it moves with its shards, and identifies what they hold."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.errors import DataError, IndexFileError, ShardError
from data.index import column_container
from data.index.index_build import build_index
from data.index.manifest import NAME, Manifest, is_manifest, open_manifest, save_manifest
from data.index.manifest_rows import KIND, ShardRow
from data.index.shard_urls import ShardUrls
from data.source.protocol import short_tag
from tests.unit.data.tars import write_tar

hashes = st.binary(min_size=32, max_size=32).map(bytes.hex)
numbers = st.integers(0, 2**60)  # the sum of a dataset's has 63 bits
rows = st.builds(
    ShardRow,
    st.text(st.characters(exclude_characters="/", codec="utf-8"), min_size=1).map(
        lambda name: f"s3://b/{name}"
    ),
    st.integers(0, 2**40),
    numbers,
    st.none() | st.text(),
    st.none() | hashes.filter(lambda text: text != "00" * 32),
    hashes,
    st.none() | st.integers(0, 2**40),
)


def row(url: str, samples: int = 3, digest: str = "ab" * 32) -> ShardRow:
    return ShardRow(url, samples, 10240, "tag", None, digest, None)


def dataset(folder: Path, shards: int = 3) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(shards):
        files = [(f"{n}-{i}.txt", b"x" * i) for i in range(n + 1)]
        write_tar(folder / f"s-{n}.tar", files)
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(rows, max_size=5))
def test_rows_come_back(tmp_path: Path, written: list[ShardRow]) -> None:
    found = save_manifest(written, tmp_path / "d.index", "npy")
    has_tokens = bool(written) and all(one.tokens is not None for one in written)
    for i, one in enumerate(written):
        tokens = one.tokens if has_tokens else None
        assert found.row(i) == one._replace(tag=None, tokens=tokens)
        assert found.is_version(i, one.bytes, one.tag)
        assert not found.is_version(i, one.bytes + 1, one.tag)
    assert found.total_samples == sum(one.samples for one in written)
    assert found.tokens == ("npy" if has_tokens else None)
    assert list(found.urls) == [one.url for one in written]


def test_relative_paths_move_with_the_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    far = str(tmp_path / "far.tar")
    save_manifest([row(f"{folder}/a b%20/é.tar"), row(far), row("s3://x/y.tar")], folder / NAME)
    shutil.move(folder, tmp_path / "two")
    found = open_manifest(tmp_path / "two")
    assert list(found.urls) == [f"{tmp_path}/two/a b%20/é.tar", far, "s3://x/y.tar"]
    assert found.urls[-1] == "s3://x/y.tar"
    assert not found.urls.are_plain
    assert found.urls[:2] == list(found.urls)[:2]
    with pytest.raises(IndexError, match=r"0\.\.2"):
        found.urls[3]


def test_the_fingerprint_is_of_samples_in_order(tmp_path: Path) -> None:
    def fingerprint(*listed: ShardRow) -> str:
        return save_manifest(listed, tmp_path / "x.index").fingerprint

    a, b = row("a", 3, "aa" * 32), row("b", 4, "bb" * 32)
    first = fingerprint(a, b)
    elsewhere = a._replace(url="s3://other/name", tag=None, bytes=7, hash="cc" * 32, tokens=1)
    assert fingerprint(elsewhere, b) == first
    others = [
        fingerprint(b, a),
        fingerprint(a),
        fingerprint(a, b._replace(samples=5)),
        fingerprint(),
    ]
    others.append(fingerprint(a, b._replace(digest="bc" * 32)))
    assert len({first, *others}) == 6


def test_the_fingerprint_is_frozen(tmp_path: Path) -> None:
    found = save_manifest([row("a", 3, "aa" * 32), row("b", 4, "bb" * 32)], tmp_path / "x.index")
    assert found.fingerprint.startswith("57b30dcb5056")
    assert found.fingerprint.endswith("56de462837d9f")


def test_equal_basenames_are_different_shards(tmp_path: Path) -> None:
    one, two = dataset(tmp_path / "one"), tmp_path / "two"
    two.mkdir()
    write_tar(two / "s-0.tar", [("other.txt", b"1"), ("sample.txt", b"2")])
    found = build_index([one / "s-0.tar", two / "s-0.tar"], tmp_path)
    assert [found.open_shard(i).key(0) for i in range(2)] == ["0-0", "other"]


def test_a_shard_that_changed_is_named_with_what_to_do(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "d")
    found = build_index(folder)
    write_tar(folder / "s-1.tar", [("x.txt", b"x" * 50_000)])
    with pytest.raises(ShardError, match=r"s-1\.tar.*had 10240 when.*`hpckit data index`"):
        found.open_shard(1)
    write_tar(folder / "s-2.tar", [("x.txt", b"")])
    with pytest.raises(ShardError, match=r"s-2\.tar.*other samples.*`hpckit data index`"):
        found.open_shard(2)
    (folder / "s-0.tar").unlink()
    with pytest.raises(ShardError, match=r"s-0\.tar.*cannot be read"):
        found.open_shard(0)
    assert len(build_index([folder / "s-1.tar", folder / "s-2.tar"]).open_shard(1)) == 1


@pytest.mark.parametrize("place", ["none", "none/x.index", "."])
def test_no_manifest_is_said(tmp_path: Path, place: str) -> None:
    with pytest.raises(IndexFileError, match="does not exist"):
        open_manifest(tmp_path / place)
    assert not is_manifest(tmp_path / place)


def test_manifests_are_told_from_other_files(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "d")
    build_index(folder)
    assert is_manifest(folder)
    assert is_manifest(folder / NAME)
    assert not is_manifest(folder / "s-0.tar")
    with pytest.raises(IndexFileError, match="of kind 'shard', expected 'dataset'"):
        open_manifest(folder / "s-0.tar.index")


def changed(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "samples": np.array([1, 2]),
        "bytes": np.array([1, 2]),
        "tags": np.array([0, 0], np.uint64),
        "hashes": np.zeros(64, np.uint8),
        "digests": np.zeros(64, np.uint8),
        "url_at": np.array([0, 1, 2], np.uint8),
        "urls": np.frombuffer(b"ab", np.uint8),
    }
    found |= {name: np.array(values) for name, values in changes.items()}
    return {name: column for name, column in found.items() if column.ndim}


@pytest.mark.parametrize(
    "listed",
    [
        changed(samples=[1]),
        changed(samples=[1, -2]),
        changed(samples=None),
        changed(urls=None),
        changed(bytes=[-1, 0]),
        changed(digests=np.zeros(63, np.uint8)),
        changed(url_at=[0, 2]),
        changed(url_at=[0, 2, 1]),
        changed(url_at=[0, 3, 2]),
        changed(url_at=[1, 1, 2]),
        changed(tokens=[1]),
        changed(tokens=np.array([1, 2], np.uint8)),
        changed(samples=np.array([1, 2], np.uint8)),
    ],
)
def test_columns_that_cannot_be_are_refused(tmp_path: Path, listed: dict[str, Any]) -> None:
    path = tmp_path / "d.index"
    path.write_bytes(column_container.pack(KIND, {}, listed))
    with pytest.raises(IndexFileError, match="is not a manifest"):
        open_manifest(path)


def test_the_columns_that_the_others_are_made_from_will_do(tmp_path: Path) -> None:
    (tmp_path / "d.index").write_bytes(column_container.pack(KIND, {}, changed()))
    assert list(open_manifest(tmp_path / "d.index").urls) == [f"{tmp_path}/a", f"{tmp_path}/b"]


def test_tags_are_short_and_none_is_none() -> None:
    assert short_tag(None) == 0
    assert len({short_tag(str(n)) for n in range(1000)}) == 1000
    assert short_tag("x") == short_tag("x") != 0


def test_a_url_needs_a_source(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no source was given"):
        open_manifest("s3://bucket/dataset.index")
    assert isinstance(save_manifest([], tmp_path / "e.index"), Manifest)


@pytest.mark.parametrize("other", ["s3://b/k.tar", "pipe:cat x", "file:///a/b.tar"])
@pytest.mark.parametrize("at", [0, 7, 29, 30])
def test_one_url_among_many_paths_is_found(
    monkeypatch: pytest.MonkeyPatch, at: int, other: str
) -> None:
    monkeypatch.setattr("data.index.shard_urls._PIECE", 16)
    names = [f"/a/{number}.tar" for number in range(30)]
    assert urls_of(names, "/a/").are_plain
    assert not urls_of([*names[:at], other, *names[at:]], "/a/").are_plain
    assert not urls_of(["a.tar"], "s3://b/").are_plain


def urls_of(names: list[str], base: str) -> ShardUrls:
    ends = np.cumsum([0, *map(len, names)])
    return ShardUrls(ends, np.frombuffer("".join(names).encode(), np.uint8), base)


def test_opening_shards_does_not_draw_the_manifest_into_memory(tmp_path: Path) -> None:
    one = row("some.tar")
    found = save_manifest([one] * 150_000, tmp_path / NAME)
    assert not sum(found.hash(i) is not None for i in range(0, len(found), 100))
    before = mapped_bytes(tmp_path / NAME)
    assert before > 4 << 20
    with pytest.raises(ShardError, match="cannot be read"):
        found.open_shard(7)
    assert mapped_bytes(tmp_path / NAME) < before


def mapped_bytes(file: Path) -> int:
    """Of a file, that are in the memory of this process."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(str(file)):
            return next(int(found.split()[1]) << 10 for found in lines if found[:4] == "Rss:")
    return 0
