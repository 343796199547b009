"""MDS, LitData and lines of JSON are read where they are, in the order of tars, by number and key;
what is damaged, pickled or unpacks to too much is refused with its place."""

from __future__ import annotations

import gc
import gzip
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from data import DataError, FingerprintError, Loader, SampleError, ShardError, open_dataset
from data.cache import cache_maintenance
from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from data.index.compressed import compressed_files
from data.index.compressed.unpacked_files import bytes_in
from data.index.dataset_verification import verify
from data.index.record_files import jsonl_files
from data.index.token_files import token_file
from data.source.file import read_at
from tests.integration.data.record_shards import write_litdata, write_mds
from tests.unit.data.tars import write_tar

N = 23


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def write_jsonl(folder: Path, count: int, per_file: int) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"text": f"line é\n{i}", "n": i} for i in range(count)]
    for number, first in enumerate(range(0, count, per_file)):
        lines = [json.dumps(row, ensure_ascii=number % 2 == 0) for row in rows[first:][:per_file]]
        end = "\r\n" if number else "\n\n"
        text = end.join(lines) + ("" if number == 1 else end)
        (folder / f"{number}.jsonl").write_bytes(text.encode())
    return rows


FORMATS: dict[str, Callable[[Path, int, int], list[dict[str, Any]]]] = {
    "mds": write_mds,
    "litdata": write_litdata,
    "jsonl": write_jsonl,
}


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    fields = {name: value for name, value in found.items() if name[:2] != "__"}
    return fields.keys() == expected.keys() and all(
        np.array_equal(fields[name], value) for name, value in expected.items()
    )


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_each_record_is_read_by_number_and_by_key(tmp_path: Path, name: str) -> None:
    rows = FORMATS[name](tmp_path / "in", N, 9)
    dataset = open_dataset(tmp_path / "in")
    assert (len(dataset), len(dataset.manifest)) == (N, 3)
    for number, row in enumerate(rows):
        sample = dataset.read(number)
        assert same(sample, row)
        assert dataset.index_of(sample["__key__"]) == number
    for other in ("7", "", "0000000000001"):
        with pytest.raises(KeyError, match="no sample"):
            dataset.index_of(other)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_they_have_the_order_and_the_resume_of_tars(tmp_path: Path, name: str) -> None:
    FORMATS[name](tmp_path / "in", N, 9)
    (tmp_path / "tars").mkdir()
    for shard in range(3):
        files = [(f"{i:012d}.txt", b"x") for i in range(shard * 9, min(N, shard * 9 + 9))]
        write_tar(tmp_path / "tars" / f"{shard}.tar", files)

    def keys(place: str, batches: int, state: Any = None) -> tuple[list[str], Any]:
        dataset = open_dataset(tmp_path / place)
        loader = Loader(dataset, global_batch=4, seed=3, streams=2, window=2)
        if state is not None:
            loader.load_state_dict(state)
        found = [key for batch in islice(loader, batches) for key in batch.keys]
        state = loader.state_dict()
        loader.close()
        return found, state

    tars, _ = keys("tars", 12)
    first, state = keys("in", 5)
    assert first + keys("in", 7, state)[0] == tars
    FORMATS[name](tmp_path / "other", N + 1, 9)
    with pytest.raises(FingerprintError):
        keys("other", 1, state)


def test_reader_processes_read_them_too(tmp_path: Path) -> None:
    rows = write_mds(tmp_path / "in", N, 9)
    dataset = pickle.loads(pickle.dumps(open_dataset(tmp_path / "in")))
    assert all(same(dataset.read(number), row) for number, row in enumerate(rows))


@pytest.mark.parametrize("write", [write_mds, write_litdata])
def test_the_facts_of_many_files_are_found_once(
    tmp_path: Path, write: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process takes one read for each file, its table; a changed file is read again,
    and where nothing can be kept the dataset is the same."""
    write(tmp_path / "in", 40, 2)
    reads = list[int]()

    def counted(fd: int, offset: int, size: int) -> bytes:
        reads.append(fd)
        return read_at(fd, offset, size)

    monkeypatch.setattr(token_file, "read_at", counted)
    first = open_dataset(tmp_path / "in")
    found = len(reads)
    assert found >= 2 * 20
    again = open_dataset(tmp_path / "in")
    assert (len(reads) - found, again.fingerprint) == (20, first.fingerprint)
    (changed,) = [p for p in (tmp_path / "in").iterdir() if "00003" in p.name or "-0-3." in p.name]
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    os.utime(changed, (1, 1))
    other = open_dataset(tmp_path / "in")
    assert other.fingerprint != first.fingerprint
    kept = tmp_path / "in" / "index.json.index"
    kept.write_bytes(kept.read_bytes()[:-1])
    assert open_dataset(tmp_path / "in").fingerprint == other.fingerprint
    kept.unlink()
    kept.mkdir()  # it cannot be replaced
    assert open_dataset(tmp_path / "in").fingerprint == other.fingerprint


# compressed files


def tar_of(folder: Path, count: int = 5) -> bytes:
    files = [(f"{i}.txt", f"text {i}".encode() * 100) for i in range(count)]
    return write_tar(folder / "plain.tar", files).read_bytes()


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.tar.gz", gzip.compress),
        ("a.tgz", lambda content: gzip.compress(content[:700]) + gzip.compress(content[700:])),
        ("a.tar.zst", zstd),
        ("a.tar.zst", lambda content: zstd(content[:700]) + zstd(content[700:])),
    ],
)
def test_compressed_tars_are_unpacked_once_and_are_the_same_dataset(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    content = tar_of(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(pack(content))
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": 1 << 20}
    dataset = open_dataset(tmp_path / "in", **options)
    plain = open_dataset(tmp_path / "plain.tar")
    assert dataset.fingerprint == plain.fingerprint
    assert [dataset.read(i)["txt"] for i in range(5)] == [plain.read(i)["txt"] for i in range(5)]
    (unpacked,) = (tmp_path / "cache" / "unpacked").glob("*-a.tar")
    before = unpacked.stat()
    again = open_dataset(str(tmp_path / "in" / name), **options)
    assert again.fingerprint == plain.fingerprint
    assert unpacked.stat().st_ino == before.st_ino
    with pytest.raises(DataError, match="give cache="):
        open_dataset(tmp_path / "in" / name)


def test_unpacked_files_are_evicted_when_no_process_uses_them(tmp_path: Path) -> None:
    """Three files are unpacked in turn into a cache that has room for two."""
    one = len(tar_of(tmp_path)) + 512  # its index
    for name in "abc":
        (tmp_path / f"{name}.tar.zst").write_bytes(zstd(tar_of(tmp_path)))
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": 5 * one // 2}

    def kept() -> list[str]:
        return sorted(p.name[-5:] for p in (tmp_path / "cache" / "unpacked").glob("*.tar"))

    first = open_dataset(tmp_path / "a.tar.zst", **options)
    second = open_dataset(tmp_path / "b.tar.zst", **options)
    with pytest.raises(ShardError, match=f"{2 * one} are used by .* in use: raise cache_bytes"):
        open_dataset(tmp_path / "c.tar.zst", **options)
    del second
    gc.collect()
    third = open_dataset(tmp_path / "c.tar.zst", **options)
    assert kept() == ["a.tar", "c.tar"]
    holder = "import sys; from data import open_dataset; d = open_dataset(sys.argv[1], "
    holder += "cache=sys.argv[2], cache_bytes=int(sys.argv[3])); print(len(d), flush=True); input()"
    arguments = [str(tmp_path / "a.tar.zst"), str(options["cache"]), str(options["cache_bytes"])]
    with subprocess.Popen(
        [sys.executable, "-c", holder, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"5\n"
        del first, third
        gc.collect()
        again = open_dataset(tmp_path / "b.tar.zst", **options)
        assert kept() == ["a.tar", "b.tar"], "the other process uses the first one"
        other.kill()
    del again
    gc.collect()
    assert cache_maintenance.prunable(options["cache"], 0) == 2 * one
    store = NodeStore(options["cache"], options["cache_bytes"], cache_local=True, free_reserve=0)
    assert store.prefetch(ShardRef(str(tmp_path / "plain.tar"), one - 512))
    assert len(kept()) == 1, "shards and unpacked files share the room"
    assert cache_maintenance.prune(options["cache"], one) == one
    assert kept() == [], "the shard was used last"
    store.close()


def test_a_damaged_compressed_tar_of_several_is_left_out_where_that_is_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = tar_of(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.tar.gz").write_bytes(gzip.compress(content)[:-9])
    (tmp_path / "in" / "1.tar.gz").write_bytes(gzip.compress(content))
    (tmp_path / "in" / "2.tar.gz").write_bytes(b"")
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": 1 << 20}
    with pytest.raises(ShardError, match="cut short within a gzip member"):
        open_dataset(tmp_path / "in", **options)
    dataset = open_dataset(tmp_path / "in", broken_shards="skip", **options)
    assert len(dataset) == 5
    assert sum("a broken shard is left out" in text for text in caplog.messages) == 2
    (tmp_path / "in" / "1.tar.gz").unlink()
    with pytest.raises(ShardError, match="cut short within a gzip member"):
        open_dataset(tmp_path / "in", broken_shards="skip", **options)


def test_a_file_that_takes_much_memory_to_unpack_is_not_called_damaged(tmp_path: Path) -> None:
    """And not left out as a damaged one."""
    content = tar_of(tmp_path)
    (tmp_path / "in").mkdir()
    window = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=0)
    made = zstandard.ZstdCompressor(compression_params=window).compressobj()
    (tmp_path / "in" / "0.tar.zst").write_bytes(made.compress(content) + made.flush())
    (tmp_path / "in" / "1.tar.zst").write_bytes(zstd(content))
    with pytest.raises(ShardError, match="needs a window of more than the 134217728 bytes"):
        open_dataset(
            tmp_path / "in",
            cache=tmp_path / "cache",
            cache_bytes=1 << 20,
            broken_shards="skip",
        )


def test_the_files_of_a_cache_are_not_counted_for_each_small_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To count them took time in proportion to the square of their number."""
    content = zstd(tar_of(tmp_path))
    (tmp_path / "in").mkdir()
    for number in range(20):
        (tmp_path / "in" / f"{number:02d}.tar.zst").write_bytes(content)
    counted = list[Path]()

    def count(folder: Path) -> int:
        counted.append(folder)
        return bytes_in(folder)

    monkeypatch.setattr(compressed_files, "bytes_in", count)
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": 1 << 20}
    assert len(open_dataset(tmp_path / "in", **options)) == 100
    assert len(counted) == 2


def test_compressed_lines_and_shards_are_unpacked_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": 1 << 20}
    rows = write_jsonl(tmp_path, N, N)
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress((tmp_path / "0.jsonl").read_bytes()))
    (tmp_path / "2.jsonl.zst").write_bytes(zstd((tmp_path / "0.jsonl").read_bytes()))
    for name in ("1.jsonl.gz", "2.jsonl.zst"):
        dataset = open_dataset(tmp_path / name, **options)
        assert all(same(dataset.read(i), row) for i, row in enumerate(rows))
    for write in (write_mds, write_litdata):
        rows = write(tmp_path / write.__name__, N, 9, zstd)
        dataset = open_dataset(tmp_path / write.__name__, **options)
        assert all(same(dataset.read(i), row) for i, row in enumerate(rows))


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("zst", zstd)])
def test_what_is_damaged_or_too_large_is_refused_with_its_place(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    content, path = pack(np.random.default_rng(0).bytes(50_000)), tmp_path / f"a.tar.{suffix}"
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": 1 << 20}

    def refused(written: bytes, said: str) -> ShardError:
        path.write_bytes(written)
        with pytest.raises(ShardError, match=said) as caught:
            open_dataset(path, **options)
        assert str(path) in str(caught.value)
        return caught.value

    assert refused(content[:30_000], "cut short within").offset == 30_000
    refused(pack(bytes(8 << 20)), "unpacks to more than cache_bytes=1048576 allows")
    if suffix == "gz":
        refused(content[:-6] + b"abcdef", "damaged: Error -3")
    refused(b"neither of them" * 50, "is neither gzip nor zstd data")
    left = [p.name for p in (tmp_path / "cache" / "unpacked").iterdir() if p.suffix != ".lock"]
    assert left == []


def test_a_folder_of_compressed_lines_is_read_and_one_of_several_formats_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": 1 << 20}
    folder = tmp_path / "in"
    rows = write_jsonl(folder, N, 9)
    for path in sorted(folder.iterdir()):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DataError, match=r"several formats, such as 0\.jsonl and 0\.jsonl\.gz"):
        open_dataset(folder, **options)
    for path in folder.glob("*.jsonl"):
        path.unlink()
    dataset = open_dataset(folder, **options)
    assert [dataset.read(i)["n"] for i in range(N)] == [row["n"] for row in rows]
    tar = tar_of(folder)
    assert len(open_dataset(folder, **options)) == 5
    assert "0.jsonl.gz" in caplog.text
    (folder / "plain.tar").unlink()
    (folder / "a.tgz").write_bytes(gzip.compress(tar))
    with pytest.raises(DataError, match="several formats"):
        open_dataset(folder, **options)


def test_lines_beside_tables_or_tars_of_energon_are_not_the_dataset(tmp_path: Path) -> None:
    write_jsonl(tmp_path, 3, 3)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"several formats, such as a\.parquet and 0\.jsonl"):
        open_dataset(tmp_path)
    (tmp_path / "tars").mkdir()
    tar_of(tmp_path / "tars")
    (tmp_path / ".nv-meta").mkdir()
    info = {"shard_counts": {"tars/plain.tar": 5}}
    (tmp_path / ".nv-meta" / ".info.json").write_text(json.dumps(info))
    assert len(open_dataset(tmp_path)) == 5


def test_padding_and_skippable_frames_end_no_file(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"abcde"
    one, two = b'{"n": 1}\n', b'{"n": 2}\n'
    contents = {
        "a.jsonl.gz": gzip.compress(one) + bytes(3 << 20) + gzip.compress(two) + bytes(9),
        "b.jsonl.zst": skippable + zstd(one) + skippable + zstd(two) + skippable,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        dataset = open_dataset(tmp_path / name, cache=tmp_path / "cache", cache_bytes=1 << 20)
        assert [dataset.read(i)["n"] for i in range(len(dataset))] == [1, 2]


def test_what_a_killed_process_has_left_is_written_over(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": 1 << 20}
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(tar_of(tmp_path)))
    open_dataset(path, **options)
    folder = tmp_path / "cache" / "unpacked"
    (unpacked,) = folder.glob("*-a.tar")
    content = unpacked.read_bytes()
    unpacked.unlink()
    left = folder / f".{unpacked.name}.{os.uname().nodename}.tmp"
    left.write_bytes(bytes(1 << 20))
    assert len(open_dataset(path, **options)) == 5
    assert unpacked.read_bytes() == content
    assert not left.exists()


def test_a_cache_that_is_made_is_only_for_this_user(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(tar_of(tmp_path)))
    cache = tmp_path / "cache"
    before = os.umask(0o002)
    try:
        open_dataset(path, cache=cache, cache_bytes=1 << 20)
    finally:
        os.umask(before)
    assert cache.stat().st_mode & 0o777 == (cache / "unpacked").stat().st_mode & 0o777 == 0o700
    (cache / "unpacked").chmod(0o777)
    with pytest.raises(DataError, match="other users can write to it"):
        open_dataset(path, cache=cache, cache_bytes=1 << 20)


# what is refused


def edited(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda i: i["shards"][0]["column_encodings"].__setitem__(0, "pkl"),
            "'text' is encoded by pickle",
        ),
        (lambda i: i["shards"][0]["column_encodings"].__setitem__(0, "own"), "the encoding 'own'"),
        (lambda i: i["shards"][0]["raw_data"].update(basename="../a"), "not the name of a file"),
        (lambda i: i["shards"][0]["raw_data"].update(basename="/etc/passwd"), "not the name of a"),
        (lambda i: i["shards"][0].pop("samples"), "not described as of MDS"),
        (lambda i: i["shards"][0].update(samples=8), "has 9 samples, but index.json says 8"),
        (lambda i: i["shards"][0].update(samples=float("inf")), "not described as of MDS"),
        (lambda i: i["shards"][0]["raw_data"].update(basename="a\0b"), "not the name of a file"),
        (lambda i: i["shards"][0].update(zip_data=[1]), "not described as of MDS"),
        (lambda i: i["shards"][0].update(format="csv"), "format 'csv'"),
        (
            lambda i: i["shards"][0].update(
                raw_data={"basename": "none", "bytes": 1},
                zip_data={"basename": "none.br"},
                compression="br:11",
            ),
            "shard 0 is compressed by 'br'",
        ),
        (lambda i: i["shards"][0]["column_names"].__setitem__(0, "__key__"), "reserved name"),
    ],
)
def test_an_index_of_mds_that_cannot_be_read_is_refused(
    tmp_path: Path, change: Callable[[Any], Any], said: str
) -> None:
    write_mds(tmp_path, N, 9)
    edited(tmp_path, change)
    with pytest.raises(DataError, match=said):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda i: i["config"]["data_format"].__setitem__(0, "pickle"),
            "'text' is encoded by pickle",
        ),
        (lambda i: i["config"]["data_format"].__setitem__(0, "pil"), "the format 'pil'"),
        (lambda i: i["config"]["data_format"].__setitem__(0, "no_header_tensor:10"), "the format"),
        (lambda i: i["config"].update(encryption={"algorithm": "fernet"}), "encrypted"),
        (lambda i: i["config"].update(compression_level="batch"), "compression_level 'batch'"),
        (lambda i: i["config"].update(compression="zstd"), "neither gzip nor zstd|give cache="),
        (lambda i: i["chunks"].__setitem__(0, 5), "chunk 0 is not described as LitData does"),
        (lambda i: i["config"].update(data_spec="[1, {"), "data_spec cannot be read"),
        (lambda i: i["config"].update(data_spec="[1, [2]]"), "data_spec cannot be read"),
        (lambda i: i["chunks"][0].update(dim=100), "streams of tokens"),
        (lambda i: i["chunks"][0].update(filename="../x"), "not the name of a file"),
        (lambda i: i["chunks"][0].pop("chunk_size"), "not described as LitData does"),
    ],
)
def test_an_index_of_litdata_that_cannot_be_read_is_refused(
    tmp_path: Path, change: Callable[[Any], Any], said: str
) -> None:
    write_litdata(tmp_path, N, 9)
    edited(tmp_path, change)
    with pytest.raises(DataError, match=said):
        open_dataset(tmp_path)


def test_a_file_that_is_cut_short_is_found_when_it_is_opened(tmp_path: Path) -> None:
    write_mds(tmp_path, N, 9)
    path = tmp_path / "shard.00001.mds"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size - 10])
    with pytest.raises(ShardError, match="cut short: sample 8 ends at byte") as caught:
        open_dataset(tmp_path)
    assert caught.value.offset == size - 10


def test_a_table_of_offsets_that_is_not_in_the_file_is_not_read(tmp_path: Path) -> None:
    write_mds(tmp_path, N, 9)
    most = (1 << 32) - 1
    (tmp_path / "shard.00000.mds").write_bytes(most.to_bytes(4, "little") * 3)
    edited(tmp_path, lambda index: index["shards"][0].update(samples=most))
    with pytest.raises(ShardError, match="4294967295 offsets are needed, and it has 12 bytes"):
        open_dataset(tmp_path)


def test_a_file_without_lines_has_no_records(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path, N, 9)
    (tmp_path / "1a.jsonl").write_bytes(b"")
    dataset = open_dataset(tmp_path)
    assert [dataset.read(i)["n"] for i in range(N)] == [row["n"] for row in rows]
    with pytest.raises(FileNotFoundError, match="no records"):
        open_dataset(tmp_path / "1a.jsonl")


@pytest.mark.parametrize("piece", [1, 3, 1 << 20])
def test_only_empty_lines_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(jsonl_files, "_PIECE", piece)
    path = tmp_path / "a.jsonl"
    for end in (b"", b"\n", b"\r\n", b"\n\r", b"\r\n\r\n"):
        path.write_bytes(b'\r\n\n{"n": 1}\r\n\r\n5\n\n{"n": 2}' + end)
        dataset = open_dataset(path)
        assert len(dataset) == 3, end
        assert [dataset.read(i)["n"] for i in (0, 2)] == [1, 2]
        with pytest.raises(ShardError, match="a line is int, not an object of JSON"):
            dataset.read(1)


def test_a_record_that_is_damaged_says_where(tmp_path: Path) -> None:
    write_jsonl(tmp_path, N, 9)
    path = tmp_path / "2.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"n": 20}', b'"n" 20} '))
    dataset = open_dataset(tmp_path)
    with pytest.raises(
        ShardError, match=r"2\.jsonl, offset \d+: record 000000000020 cannot be read"
    ):
        dataset.read(20)
    with pytest.raises(SampleError, match="000000000020"):
        list(Loader(dataset, global_batch=4, epochs=1))
    kept = Loader(dataset, global_batch=4, epochs=1, errors="skip")
    assert sum(len(batch.keys) for batch in kept) in (N - 1, N)
    assert kept.usage.errors >= 1


def test_verification_finds_a_record_that_is_damaged(tmp_path: Path) -> None:
    write_jsonl(tmp_path, N, 9)
    path = tmp_path / "1.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"n": 10}', b'"n" 10} '))
    manifest = open_dataset(tmp_path).manifest
    assert [one.problem for one in verify(manifest)] == [None] * 3
    whole, damaged, other = (one.problem for one in verify(manifest, full=True))
    assert (whole, other) == (None, None)
    assert damaged is not None
    assert damaged.startswith("record 10 at byte ")


def test_a_file_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    write_jsonl(tmp_path, N, N)
    dataset = open_dataset(tmp_path)
    path = tmp_path / "0.jsonl"
    path.write_bytes(path.read_bytes().replace(b"line", b"LINE"))
    with pytest.raises(ShardError, match="has changed since the dataset was opened"):
        dataset.read(0)


def test_options_of_tars_are_refused_for_files_of_records(tmp_path: Path) -> None:
    write_jsonl(tmp_path, N, 9)
    for option, value in (
        ("rename_files", str.upper),
        ("broken_shards", "skip"),
        ("repeated_shards", "keep"),
    ):
        with pytest.raises(DataError, match=rf"{option}.* is only for tars"):
            open_dataset(tmp_path, **{option: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["broken_shards", "repeated_shards"])
def test_an_unknown_choice_is_refused(tmp_path: Path, option: str) -> None:
    write_tar(tmp_path / "x.tar", [("a.txt", b"x")])
    with pytest.raises(DataError, match=rf"{option} must be one of .*, got 'ignore'"):
        open_dataset(tmp_path, **{option: "ignore"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        (["{folder}/0.jsonl", "{folder}/0.jsonl"], "is given twice"),
        (["{folder}/0.jsonl", "{folder}/x.tar"], "open them separately"),
        (["{folder}/none-*.jsonl"], "nothing is there"),
        (["s3://bucket/a.jsonl"], "only read from a file system"),
        (["https://host/{00..09}.tar.gz?token=1"], "compressed tars are only read from a file"),
        (["s3://bucket/a.tar.zst"], "compressed tars are only read from a file system"),
        (["{folder}/none-{0..3}.tar.gz"], "nothing matches"),
    ],
)
def test_shards_that_cannot_be_opened_so(tmp_path: Path, shards: list[str], said: str) -> None:
    write_jsonl(tmp_path, N, 9)
    write_tar(tmp_path / "x.tar", [("a.txt", b"x")])
    with pytest.raises(DataError, match=said):
        open_dataset([one.replace("{folder}", str(tmp_path)) for one in shards])


def test_the_lines_of_a_large_file_are_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from data.index.record_files import jsonl_files

    monkeypatch.setattr(jsonl_files, "_FEW_BYTES", 1)
    rows = write_jsonl(tmp_path, N, N)
    first = open_dataset(tmp_path / "0.jsonl")
    assert (tmp_path / "0.jsonl.index").is_file()
    monkeypatch.setattr(jsonl_files, "_scan", None)
    again = open_dataset(tmp_path / "0.jsonl")
    assert again.fingerprint == first.fingerprint
    assert same(again.read(7), rows[7])


def test_lines_of_another_version_of_the_same_size_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lines of different lengths change places where no probe looks."""
    monkeypatch.setattr(jsonl_files, "_FEW_BYTES", 1)
    monkeypatch.setattr(token_file, "PROBES", 2)
    monkeypatch.setattr(token_file, "PROBE_BYTES", 8)
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"n": n, "text": "x" * (n % 7)}).encode() + b"\n" for n in range(50)]
    for again in (False, True):
        if again:
            lines[20:22] = lines[21], lines[20]
        path.write_bytes(b"".join(lines))
        os.utime(path, ns=(0, again))
        dataset = open_dataset(path)
        assert (tmp_path / "a.jsonl.index").is_file()
        assert [dataset.read(n)["n"] for n in (20, 21)] == ([21, 20] if again else [20, 21])


def test_lines_of_nothing_but_spaces_are_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    content = b' \n{"n": 0}\n\t \r\n {"n": 1} \n\r\n  \r\n{"n": 2}\r\n {"n": 3}\n \n   '
    path.write_bytes(content)
    for piece in (1, 2, 3, 7, 1 << 20):
        monkeypatch.setattr(jsonl_files, "_PIECE", piece)
        dataset = open_dataset(path)
        assert [dataset.read(i)["n"] for i in range(len(dataset))] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "content", [b'{\n "n": 1\n}\n', b'[{"n": 1}]\n', b'{"n": 1}\r{"n": 2}\r', b"n\n1\n"]
)
def test_what_is_not_one_object_in_each_line_is_refused_when_it_is_opened(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(ShardError, match="its lines are not objects of JSON"):
        open_dataset(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_bytes(b'{"torn\n{"n": 1}\n')
    dataset = open_dataset(tmp_path / "a.jsonl")
    assert dataset.read(1)["n"] == 1
    with pytest.raises(ShardError, match="record 000000000000 cannot be read"):
        dataset.read(0)
