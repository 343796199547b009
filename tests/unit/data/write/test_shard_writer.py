"""Writing: what a shard holds, what is refused, what an exception leaves; packs with an index."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.index.dataset_verification import verify
from data.index.index_build import build_index
from data.index.manifest import NAME, Manifest, open_manifest
from data.index.shard.shard_scan import scan_shard, shard_index
from data.write.folder_pack import pack_folder
from data.write.shard_file import _header
from data.write.shard_writer import ShardWriter
from tests.effort import times
from tests.unit.data.tars import by_index


def sample(i: int, size: int = 10) -> dict[str, Any]:
    return {"__key__": f"dir.x/{i:04d}", "txt": f"text {i}", "bin": b"x" * size, "__url__": "no"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read(manifest: Manifest) -> list[tuple[str, dict[str, bytes]]]:
    found: list[tuple[str, dict[str, bytes]]] = []
    for number, url in enumerate(manifest.urls):
        content, index = Path(url).read_bytes(), manifest.open_shard(number)
        for i in range(len(index)):
            members = {m.extension: content[m.offset : m.offset + m.size] for m in index.members(i)}
            found.append((index.key(i), members))
    return found


def test_samples_are_written_in_order_into_whole_shards(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "new/s-%03d.tar", max_samples=4) as writer:
        for i in range(10):
            writer.write(sample(i))
            assert len(list((tmp_path / "new").glob("*.tar"))) == i // 4
    found = open_manifest(tmp_path / "new")
    assert found.samples.tolist() == [4, 4, 2]
    keys = [f"dir.x/{i:04d}" for i in range(10)]
    texts = [{"txt": f"text {i}".encode(), "bin": b"x" * 10} for i in range(10)]
    assert read(found) == list(zip(keys, texts, strict=True))
    shards = [f"s-{n:03d}.tar" for n in range(3)]
    assert names(tmp_path / "new") == sorted([NAME, *shards, *(f"{name}.index" for name in shards)])


def test_the_index_made_in_passing_is_the_one_of_the_file(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s-%d.tar") as writer:
        for i in range(5):
            writer.write({"__key__": "é" * 100 * (i + 1), "a.json": "{}", "b": b""})
    kept, scanned = shard_index(tmp_path / "s-0.tar"), scan_shard(tmp_path / "s-0.tar", hash=True)
    assert by_index(kept) == by_index(scanned)
    assert kept.meta == scanned.meta
    assert kept.hash == blake3((tmp_path / "s-0.tar").read_bytes()).hexdigest()
    assert [verdict.problem for verdict in verify(tmp_path, full=True)] == [None]


def test_shards_end_before_they_are_too_long(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s-%d.tar", max_bytes=50_000) as writer:
        for i in range(20):
            writer.write(sample(i, 100_000 if i == 7 else 9000))
    found = open_manifest(tmp_path)
    assert found.total_samples == 20
    assert sorted(int(size) for size in found.bytes)[-1] > 100_000
    assert sum(int(size) > 51_200 for size in found.bytes) == 1
    assert len(found) < 12


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with ShardWriter(tmp_path / name / "s-%d.tar", max_samples=3) as writer:
            for i in range(5):
                writer.write(sample(i))
    for number in range(2):
        one, two = (tmp_path / name / f"s-{number}.tar" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_tokens_are_counted_as_they_are_by_the_index(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s-%d.tar", max_samples=2, tokens="bin:uint16") as writer:
        for i in range(3):
            writer.write(sample(i, 2 * i))
        with pytest.raises(DataError, match=r"'dir\.x/0003': 'bin:uint16' made no tokens"):
            writer.write(sample(3, 3))
    found = open_manifest(tmp_path)
    assert found.n_tokens is not None
    assert found.n_tokens.tolist() == [1, 2]
    again = scan_shard(tmp_path / "s-0.tar", tokens="bin:uint16").n_tokens
    assert again is not None
    assert again.tolist() == [0, 1]


def test_an_exception_removes_the_unfinished_shard_only(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "s-%d.tar", max_samples=2)

    def write() -> None:
        with writer:
            for i in range(3):
                writer.write(sample(i))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write()
    assert names(tmp_path) == ["s-0.tar", "s-0.tar.index"]
    with pytest.raises(DataError, match="is closed"):
        writer.write(sample(4))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({}, "must have its key"),
        ({"__key__": 1, "txt": ""}, "must have its key"),
        ({"__key__": "a"}, "has only its key"),
        ([], "a sample is a mapping of its key and members, got \\[\\]"),
        ({"__key__": "a.b", "txt": ""}, "would not be read back"),
        ({"__key__": "", "txt": ""}, "would not be read back"),
        ({"__key__": "a\0b", "txt": ""}, "would not be read back"),
        ({"__key__": "__meta__/a", "txt": ""}, "would not be read back"),
        ({"__key__": "a", "TXT": ""}, "would not be read back"),
        ({"__key__": "a", "t/xt": ""}, "would not be read back"),
        ({"__key__": "a", "": ""}, "would not be read back"),
        ({"__key__": "a", 3: ""}, "an extension is text, got 3"),
        ({"__key__": "a", "cls": 3}, "encode int as bytes or text"),
        ({"__key__": "a", "txt": "\udc00"}, "not UTF-8"),
        ({"__key__": "dir.x/0000", "json": ""}, "was already written"),
    ],
)
def test_samples_that_could_not_be_read_back_are_refused(
    tmp_path: Path, wrong: dict[str, Any], problem: str
) -> None:
    with ShardWriter(tmp_path / "s-%d.tar") as writer:
        writer.write(sample(0))
        with pytest.raises(DataError, match=problem):
            writer.write(wrong)
        writer.write(sample(1))
    assert len(read(open_manifest(tmp_path))) == 2


def test_arguments_of_webdatasets_writer_are_told_by_their_names_here(tmp_path: Path) -> None:
    for there, here in {"maxcount": "max_samples", "maxsize": "max_bytes"}.items():
        keyword: dict[str, Any] = {there: 10}
        with pytest.raises(TypeError, match=f"ShardWriter: .* {there}; did you mean {here}?"):
            ShardWriter(tmp_path / "s-%d.tar", **keyword)
    with pytest.raises(TypeError, match="max_samples must be a whole number, got '10'"):
        ShardWriter(tmp_path / "s-%d.tar", max_samples="10")  # type: ignore[arg-type]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "s-0.tar").write_bytes(b"precious")
    with pytest.raises(DataError, match=r"s-0\.tar already exists"):
        ShardWriter(tmp_path / "s-%d.tar")
    writer = ShardWriter(tmp_path / "x-%d.tar")
    writer.write(sample(0))
    (tmp_path / "x-0.tar").write_bytes(b"precious")
    with pytest.raises(DataError, match=r"x-0\.tar already exists"):
        writer.close()
    assert names(tmp_path) == ["s-0.tar", "x-0.tar"]
    assert {(tmp_path / name).read_bytes() for name in names(tmp_path)} == {b"precious"}
    (tmp_path / NAME).write_bytes(b"")
    with pytest.raises(DataError, match=r"dataset\.index already exists"):
        ShardWriter(tmp_path / "y-%d.tar")


def test_writers_side_by_side_are_merged(tmp_path: Path) -> None:
    writers = [ShardWriter(tmp_path / f"w{n}-%d.tar", manifest=False) for n in range(2)]
    for i in range(6):
        writers[i % 2].write(sample(i))
    assert [writer.close() for writer in writers] == [None, None]
    found = build_index(tmp_path)
    assert [key for key, _ in read(found)] == [f"dir.x/{i:04d}" for i in (0, 2, 4, 1, 3, 5)]
    assert found.hash(0) is not None


@pytest.mark.parametrize(
    "pattern", ["s.tar", "s-%d.zip", "s-%s.tar", "%d/s-%d.tar", "%d-%d.tar", "%%d.tar"]
)
def test_patterns_are_checked(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(DataError, match="shards named"):
        ShardWriter(tmp_path / pattern)
    with pytest.raises(DataError, match="at least 1"):
        ShardWriter(tmp_path / "s-%d.tar", max_samples=0)


def test_a_writer_of_nothing_makes_an_empty_dataset(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "s-%d.tar"):
        pass
    assert (len(open_manifest(tmp_path)), open_manifest(tmp_path).total_samples) == (0, 0)


keys = st.text(st.characters(codec="utf-8", exclude_characters="\0."), min_size=1).filter(
    lambda key: not key.startswith("__") and not key.endswith("/")
)


@settings(max_examples=times(30), deadline=None)
@given(st.dictionaries(keys, st.binary(max_size=600), min_size=1, max_size=4))
def test_any_key_comes_back(
    tmp_path_factory: pytest.TempPathFactory, samples: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("w")
    with ShardWriter(folder / "s-%d.tar") as writer:
        for key, content in samples.items():
            writer.write({"__key__": key, "b": content})
    assert read(open_manifest(folder)) == [
        (key, {"b": content}) for key, content in samples.items()
    ]
    with tarfile.open(folder / "s-0.tar") as tar:
        assert [info.name for info in tar] == [f"{key}.b" for key in samples]


@settings(max_examples=times(100))
@given(st.text(max_size=120), st.integers(0, 9 * 2**30) | st.integers(0, 3000))
def test_headers_are_those_of_the_standard_library(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    assert _header(name, size) == info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def test_a_pack_has_an_index(tmp_path: Path) -> None:
    source, out = tmp_path / "src", tmp_path / "out"
    (source / ("long" * 40)).mkdir(parents=True)
    for i in range(50):
        (source / f"{i:03d}.txt").write_bytes(b"x" * i)
        (source / ("long" * 40) / f"{i}.é").write_bytes(b"y")
    report = pack_folder(source, out, samples_per_shard=30)
    found = open_manifest(out)
    assert found.samples.tolist() == [30, 30, 30, 10]
    assert [found.hash(i) for i in range(4)] == [shard.blake3 for shard in report.shards]
    assert [verdict.problem for verdict in verify(found, full=True)] == [None] * 4
    before = (out / NAME).stat()
    assert pack_folder(source, out, samples_per_shard=30) == report
    assert (out / NAME).stat() == before
