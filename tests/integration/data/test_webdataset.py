"""Shards of ours are shards of webdataset: the library reads the same keys and bytes."""

from pathlib import Path
from typing import Any

import pytest
import webdataset

from data import Loader, open_dataset, pack_folder, python_stdlib


def read_with_webdataset(shards: list[Path]) -> dict[str, dict[str, Any]]:
    pipeline = webdataset.WebDataset([str(path) for path in shards], shardshuffle=False)
    samples = [dict(sample) for sample in pipeline]
    assert len({sample["__key__"] for sample in samples}) == len(samples)
    return {sample["__key__"]: sample for sample in samples}


def read_with_data(out: Path) -> dict[str, dict[str, Any]]:
    dataset = open_dataset(out)
    return {s["__key__"]: s for s in (dataset.read(i) for i in range(len(dataset)))}


def contents(samples: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    meta = ("__url__", "__local_path__")
    return {k: {x: v for x, v in s.items() if x not in meta} for k, s in samples.items()}


def test_the_standard_library_reads_back_through_webdataset(tmp_path: Path) -> None:
    source, exclude = python_stdlib()
    out = tmp_path / "out"
    report = pack_folder(source, out, suffixes=(".py",), exclude=exclude, samples_per_shard=100)
    ours, theirs = read_with_data(out), read_with_webdataset(sorted(out.glob("*.tar")))
    assert len(ours) == report.samples > 300
    assert contents(ours) == contents(theirs)
    for key, sample in ours.items():
        assert sample["py"] == (source / f"{key}.py").read_bytes()


def test_awkward_names_read_back_through_webdataset(tmp_path: Path) -> None:
    source, out = tmp_path / "src", tmp_path / "out"
    names = [
        "a.txt",
        "a.b.JSON",
        "a-b.txt",
        "a b.txt",
        "v1.2/a.txt",
        "v1.2/" + "long" * 50 + ".txt",
        "ü/é.txt",
        "new\nline.txt",
        "two..dots",
        "__future__.py",
        "__meta__/x.txt",
        "UPPER.TXT",
        "empty.bin",
        b"latin-\xe9.txt".decode("utf-8", "surrogateescape"),
    ]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"" if "empty" in name else repr(name).encode())
    pack_folder(source, out)
    ours, theirs = read_with_data(out), read_with_webdataset([out / "shard-000000.tar"])
    assert contents(ours) == contents(theirs)
    assert len(ours) == 12  # a.txt and a.b.JSON are one sample, __meta__ is none


@pytest.mark.parametrize("prefetch", [1, 4])
def test_shards_that_webdataset_wrote_load(tmp_path: Path, prefetch: int) -> None:
    with webdataset.ShardWriter(str(tmp_path / "s-%02d.tar"), maxcount=7, verbose=0) as writer:
        for i in range(30):
            writer.write({"__key__": f"k{i:02d}", "txt": f"text {i}", "cls": i})
    loader = Loader(open_dataset(tmp_path), global_batch=30, prefetch=prefetch)
    batch = next(iter(loader))
    loader.close()
    found = {sample["__key__"]: (sample["txt"], sample["cls"]) for sample in batch.data}
    assert found == {f"k{i:02d}": (f"text {i}".encode(), str(i).encode()) for i in range(30)}
