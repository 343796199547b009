"""Rows of Parquet, Arrow and Hugging Face datasets on disk are samples, as pyarrow reads them."""

from __future__ import annotations

import io
import json
import logging
import pickle
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from data import DataError, FingerprintError, Loader, ShardError, mixed, open_dataset
from data.index.table_files.table_file import open_parquet
from data.read import stream_sizes as sizes_module
from data.read.shards import table_samples
from data.read.shards.table_samples import UnpackedGroups
from data.read.stream_sizes import stream_sizes

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

N = 41


def table(first: int, end: int) -> Any:
    numbers = range(first, end)
    return pa.table(
        {
            "text": [None if i == 3 else f"text é {i}" for i in numbers],
            "n": pa.array(numbers, pa.int32()),
            "image": [{"bytes": b"\xff\xd8" * i, "path": None} for i in numbers],
            "tags": [list(range(i % 3)) for i in numbers],
        }
    )


def parquet(folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    for number, (first, end) in enumerate(((0, 30), (30, N))):
        pq.write_table(
            table(first, end),
            folder / f"{number}.parquet",
            row_group_size=8,
            compression="zstd",
            write_page_checksum=True,
        )
    return folder


def saved(folder: Path) -> Any:
    """A folder as `save_to_disk` writes it."""
    folder.mkdir(exist_ok=True)
    names = []
    for number, (first, end) in enumerate(((0, 30), (30, N))):
        names.append(f"data-{number:05d}-of-00002.arrow")
        rows = table(first, end)
        with pa.ipc.new_stream(str(folder / names[-1]), rows.schema) as writer:
            writer.write_table(rows, max_chunksize=8)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "x"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def arrow_file(folder: Path) -> Any:
    rows = table(0, N)
    with pa.ipc.new_file(str(folder / "a.arrow"), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=8)
    return folder / "a.arrow"


def litdata_chunk(rows: Any, compression: str | None = None) -> bytes:
    """A chunk as LitData writes items of plain values: records of no bytes, then rows of Arrow."""
    written = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(written, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=8)
    arrow = written.getvalue()
    count = rows.num_rows
    head = struct.pack(f"<{count + 2}I", count, *[4 * (count + 2)] * (count + 1))
    return head + arrow + struct.pack("<I", len(arrow)) + b"LDARW01\0"


def litdata(folder: Path) -> Any:
    chunks = []
    for number, (first, end) in enumerate(((0, 30), (30, N))):
        chunk = litdata_chunk(table(first, end), "zstd" if number else None)
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(chunk)
        chunks.append({"filename": name, "chunk_size": end - first, "dim": None})
    spec = json.dumps([1, {"type": None, "context": None, "children_spec": []}])
    config = {"compression": None, "data_format": ["json"], "data_spec": spec}
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return folder


KINDS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "litdata": (litdata, {}),
    "parquet": (parquet, {}),
    "save_to_disk": (saved, {"rows": True}),
    "arrow": (arrow_file, {"rows": True}),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_row_is_what_pyarrow_reads(tmp_path: Path, kind: str) -> None:
    write, options = KINDS[kind]
    dataset = open_dataset(write(tmp_path), **options)
    expected = table(0, N).to_pylist()
    assert len(dataset) == N
    sent = pickle.loads(pickle.dumps(dataset))
    for number, row in enumerate(expected):
        sample = sent.read(number)
        assert {name: sample[name] for name in row} == row
        assert dataset.index_of(sample["__key__"]) == number


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_rows_come_once_per_epoch_and_resume_exactly(tmp_path: Path, kind: str) -> None:
    write, options = KINDS[kind]
    place = write(tmp_path)

    def loader(**more: Any) -> Loader:
        given = {"streams": 2, "window": 2, "seed": 1, **more}
        return Loader(open_dataset(place, **options), global_batch=4, epochs=1, **given)

    def numbers(batches: Any) -> list[int]:
        return [sample["n"] for batch in batches for sample in batch.data]

    whole = numbers(loader(tail="pad"))
    assert sorted(set(whole)) == list(range(N))
    first = loader(tail="pad")
    begun = numbers(islice(first, 4))
    after = loader(tail="pad", threads=0)
    after.load_state_dict(first.state_dict())
    first.close()
    assert begun + numbers(after) == whole


def test_another_table_is_not_resumed_and_a_changed_one_is_noticed(tmp_path: Path) -> None:
    dataset = open_dataset(parquet(tmp_path))
    state = Loader(dataset, global_batch=4).state_dict()
    rows = table(30, N).set_column(1, "n", pa.array(range(N - 30), pa.int32()))
    pq.write_table(rows, tmp_path / "1.parquet", row_group_size=8, compression="zstd")
    with pytest.raises(DataError, match=r"has changed|was opened|manifest says"):
        dataset.read(N - 1)
    with pytest.raises(FingerprintError):
        Loader(open_dataset(tmp_path), global_batch=4).load_state_dict(state)


def test_groups_of_two_versions_of_a_table_are_never_mixed(tmp_path: Path) -> None:
    """Both have the same size, and the shard of all groups is open already."""
    path, sizes = tmp_path / "a.parquet", list[int]()

    def write(base: int) -> None:
        rows = pa.table({"n": pa.array(range(base, base + N), pa.int64())})
        pq.write_table(rows, tmp_path / "new", row_group_size=8, use_dictionary=False)
        sizes.append((tmp_path / "new").stat().st_size)
        (tmp_path / "new").replace(path)

    write(1000)
    dataset = open_dataset(path)
    assert dataset.read(0)["n"] == 1000
    write(2000)
    assert sizes[0] == sizes[1]
    with pytest.raises(ShardError, match="has changed since the dataset was opened"):
        dataset.read(N - 1)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_table_that_is_cut_short_is_refused_with_its_place(tmp_path: Path, kind: str) -> None:
    write, options = KINDS[kind]
    place = write(tmp_path)
    path = [one for end in ("parquet", "arrow", "bin") for one in sorted(tmp_path.glob(f"*.{end}"))]
    content = path[-1].read_bytes()
    path[-1].write_bytes(content[:3000] if kind == "arrow" else content[:-200])
    with pytest.raises(ShardError, match=r"damaged or cut short|or it is cut short") as caught:
        open_dataset(place, **options)
    assert str(path[-1]) in str(caught.value)


def test_a_flipped_bit_of_a_parquet_page_is_found(tmp_path: Path) -> None:
    path = parquet(tmp_path) / "0.parquet"
    column = pq.read_metadata(path).row_group(1).column(1)
    at = (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size
    content = bytearray(path.read_bytes())
    content[at - 2] ^= 1
    path.write_bytes(content)
    dataset = open_dataset(tmp_path)
    assert dataset.read(0)["n"] == 0
    with pytest.raises(ShardError, match="group 1 is damaged"):
        dataset.read(9)


def test_an_offset_of_an_arrow_file_that_is_damaged_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    rows = pa.table({"text": ["abc"] * 50})
    with pa.ipc.new_file(str(path), rows.schema) as writer:
        writer.write_table(rows)
    content = bytearray(path.read_bytes())
    at = content.find(struct.pack("<3i", 0, 3, 6)) + 4 * 20
    content[at : at + 4] = struct.pack("<i", 1 << 30)
    path.write_bytes(content)
    with pytest.raises(ShardError, match="group 0 is damaged"):
        open_dataset(path, rows=True).read(20)


@pytest.mark.parametrize("kind", ["arrow", "save_to_disk"])
def test_a_damaged_length_that_ends_the_record_batches_early_is_refused(
    tmp_path: Path, kind: str
) -> None:
    write, options = KINDS[kind]
    place = write(tmp_path)
    path = min(tmp_path.glob("*.arrow"))
    content = bytearray(path.read_bytes())
    found = [at for at in range(0, len(content), 8) if content[at : at + 4] == b"\xff" * 4]
    content[found[2] + 4 : found[2] + 8] = bytes(4)  # the mark of the end, in place of a batch
    path.write_bytes(content)
    with pytest.raises(ShardError, match=r"after its last record batch|its footer lists 6"):
        open_dataset(place, **options)


def test_a_damaged_name_of_a_column_is_refused(tmp_path: Path) -> None:
    path = arrow_file(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"image", b"\xffmage"))
    with pytest.raises(ShardError, match="its schema is damaged or cut short") as caught:
        open_dataset(path, rows=True)
    assert str(path) in str(caught.value)


def test_what_cannot_be_one_dataset_is_refused(tmp_path: Path) -> None:
    folder = parquet(tmp_path / "p")
    pq.write_table(pa.table({"other": [1]}), folder / "2.parquet")
    coded = pa.table({"c": pa.array(["a", "b"]).dictionary_encode()})
    with pa.ipc.new_file(str(tmp_path / "d.arrow"), coded.schema) as writer:
        writer.write_table(coded)
    cases: tuple[tuple[Any, bool, str], ...] = (
        (folder, False, r"2\.parquet has the columns \['other'\]"),
        ([folder / "0.parquet"] * 2, False, "given twice"),
        (tmp_path / "d.arrow", True, r"columns \['c'\] are dictionaries"),
        ("s3://bucket/x.parquet", False, "only read from a file system"),
        (folder / "none-*.parquet", False, "nothing is there"),
        (tmp_path / "none", True, "not a table"),
    )
    for shards, rows, said in cases:
        with pytest.raises(DataError, match=said):
            open_dataset(shards, rows=rows)


def test_without_pyarrow_the_line_that_installs_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    place = parquet(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="pip install pyarrow"):
        open_dataset(place)


def test_threads_unpack_a_group_once_and_a_forked_process_waits_for_none(tmp_path: Path) -> None:
    table_file = open_parquet(parquet(tmp_path) / "0.parquet")
    kept = UnpackedGroups(1 << 30)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: kept.get(table_file, 1), range(16)))
    assert all(rows is found[0] for rows in found)
    with kept._lock:  # as a thread that is forked away
        kept.after_fork()
        assert kept.get(table_file, 1).num_rows == 8


def test_streams_are_chosen_by_the_groups_and_a_state_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that was saved with 48 streams goes on in its order, alone and in a mixture, where
    fewer would be chosen; one of streams that were given is refused by other given ones."""
    dataset = open_dataset(parquet(tmp_path))
    assert stream_sizes(dataset.manifest, None, None) == (48, 8), "small groups"

    def keys(loader: Loader, steps: int) -> list[str]:
        return [key for batch in islice(loader, steps) for key in batch.keys]

    options: dict[str, Any] = {"global_batch": 4, "threads": 0}
    old = Loader(dataset, **options)
    mixture = Loader(mixed([dataset], [1]), **options)
    before = [keys(old, 2), keys(mixture, 2)]
    states = [old.state_dict(), mixture.state_dict()]
    assert before[0] == keys(Loader(dataset, streams=48, window=8, **options), 2)
    rest = [keys(old, 5), keys(mixture, 5)]

    size = int(dataset.manifest.bytes.sum()) // len(dataset.manifest)
    monkeypatch.setattr(sizes_module, "LIVE_BYTES", 20 * size)
    monkeypatch.setattr(sizes_module, "WINDOW_BYTES", 2 * size)
    assert stream_sizes(dataset.manifest, None, None) == (10, 2)
    assert stream_sizes(dataset.manifest, None, 1) == (20, 1)
    assert stream_sizes(dataset.manifest, 3, None) == (3, 2)
    new = Loader(dataset, **options)
    assert new.state_dict()["streams"] == 10
    new.load_state_dict(states[0])
    assert keys(new, 5) == rest[0]
    assert new.state_dict()["streams"] == 48
    newer = Loader(mixed([dataset], [1]), **options)
    newer.load_state_dict(states[1])
    assert keys(newer, 5) == rest[1]
    with pytest.raises(FingerprintError, match="streams"):
        Loader(dataset, streams=10, **options).load_state_dict(states[0])


@pytest.mark.parametrize("most_bytes", [1, 1 << 30])
def test_groups_are_kept_up_to_a_number_of_bytes_and_thrashing_is_told(
    tmp_path: Path,
    most_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One row of each group is read in turn. Many groups alone are no thrashing."""
    monkeypatch.setattr(table_samples, "UNPACKED_GROUPS", UnpackedGroups(most_bytes))
    monkeypatch.setattr(table_samples, "_AGAIN", 5)
    dataset = open_dataset(parquet(tmp_path))
    with caplog.at_level(logging.WARNING):
        for number in [*range(0, N, 8)] * 2:
            dataset.read(number)
    assert ("unpacked again for each 1.0 rows" in caplog.text) == (most_bytes == 1)


def test_an_arrow_file_whose_writer_was_killed_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole record batches are there, and no end: a file needs its footer, a stream may end so."""
    rows, path = table(0, N), tmp_path / "a.arrow"
    for kind, is_refused in ((pa.ipc.new_file, True), (pa.ipc.new_stream, False)):
        written = io.BytesIO()
        writer = kind(written, rows.schema)
        for batch in rows.to_batches(max_chunksize=8)[:3]:
            writer.write_batch(batch)
        path.write_bytes(written.getvalue())
        if is_refused:
            with pytest.raises(ShardError, match="has no footer, so it is cut short") as caught:
                open_dataset(path, rows=True)
            assert str(path) in str(caught.value)
            assert not caplog.messages
        else:
            assert len(open_dataset(path, rows=True)) == 24
            assert "no end-of-stream mark" in caplog.text


def test_dictionaries_inside_other_columns_of_arrow_are_refused_when_it_is_opened(
    tmp_path: Path,
) -> None:
    coded = pa.array(["a", "b", "a"]).dictionary_encode()
    columns = {
        "struct": pa.StructArray.from_arrays([coded], ["x"]),
        "list": pa.ListArray.from_arrays([0, 1, 2, 3], coded),
        "map": pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["k"] * 3), coded),
    }
    for name, column in columns.items():
        rows, path = pa.table({"n": [1, 2, 3], name: column}), tmp_path / f"{name}.arrow"
        with pa.ipc.new_stream(str(path), rows.schema) as writer:
            writer.write_table(rows)
        with pytest.raises(DataError, match=rf"columns \['{name}'\] are dictionaries"):
            open_dataset(path, rows=True)


def test_an_encrypted_table_is_not_called_damaged(tmp_path: Path) -> None:
    path = parquet(tmp_path) / "0.parquet"
    path.write_bytes(path.read_bytes()[:-4] + b"PARE")  # as one with an encrypted footer ends
    with pytest.raises(ShardError, match="its footer is encrypted, which is not supported"):
        open_dataset(path)


def test_chunks_of_litdata_that_are_not_what_their_index_says_are_refused(tmp_path: Path) -> None:
    litdata(tmp_path)
    assert len(open_dataset(tmp_path / "index.json")) == N
    second, first = tmp_path / "chunk-0-1.bin", (tmp_path / "chunk-0-0.bin").read_bytes()
    content = second.read_bytes()
    record = struct.pack("<I", 1) + b"1"
    plain = struct.pack("<3I", 1, 12, 12 + len(record)) + record
    for written, said in (
        (litdata_chunk(table(30, N - 1)), r"has 10 rows, but index\.json says 11"),
        (plain, "not rows of Arrow as those of the first chunk"),
        (content[:-12] + b"\xff" * 4 + content[-8:], "or it is cut short"),
        (b"", "or it is cut short"),
    ):
        second.write_bytes(written)
        with pytest.raises(ShardError, match=said):
            open_dataset(tmp_path)
    second.write_bytes(first)
    index = json.loads((tmp_path / "index.json").read_text())
    index["chunks"].insert(0, {"filename": "plain.bin", "chunk_size": 1, "dim": None})
    (tmp_path / "index.json").write_text(json.dumps(index))
    (tmp_path / "plain.bin").write_bytes(plain)
    with pytest.raises(ShardError, match="rows of Arrow as those of the first chunk are not"):
        open_dataset(tmp_path)
