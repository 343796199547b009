"""Token files packed into tars: the same documents, with the same keys and counts."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import DataError, Dataset, Loader, Packing, TokenFiles, open_dataset, vocabulary_of
from data.index.dataset_verification import verify
from data.write.token_pack import pack_token_files
from tests.unit.data.token_files import write_arrow, write_flat, write_megatron

DOCUMENTS = [[*range(n), 60000] for n in (3, 9, 1, 14, 30, 2) * 5]


def sources(folder: Path, kind: str) -> tuple[Path, TokenFiles]:
    if kind == "megatron":
        return write_megatron(folder / "x", DOCUMENTS, "int32"), TokenFiles()
    if kind == "arrow":
        pytest.importorskip("pyarrow")
        return write_arrow(folder / "x.arrow", DOCUMENTS), TokenFiles()
    options: dict[str, Any] = {"end_of_text": 60000} if kind == "ended" else {"block_size": 8}
    return write_flat(folder / "train.bin", DOCUMENTS), TokenFiles(**options)


def packed_sequences(dataset: Dataset) -> list[list[int]]:
    """All sequences of an epoch of documents that fill one each, sorted."""
    loader = Loader(
        dataset, global_batch=4, pack=Packing(31), epochs=1, tail="pad", shuffle=False, threads=0
    )
    return sorted(line for batch in loader for line in batch.data.tokens[batch.mask].tolist())


@pytest.mark.parametrize("kind", ["ended", "windows", "megatron", "arrow"])
def test_documents_are_the_same_in_the_tars(tmp_path: Path, kind: str) -> None:
    source, options = sources(tmp_path, kind)
    report = pack_token_files(source, tmp_path / "out", options, samples_per_shard=7)
    assert report is not None
    files, tars = open_dataset(source, token_files=options), open_dataset(tmp_path / "out")
    assert len(files) == len(tars) == report.samples
    for i in range(len(files)):
        one, two = files.read(i), tars.read(i)
        assert one["__key__"] == two["__key__"]
        assert files.manifest.tokens is not None
        tokens = np.frombuffer(one["bin"], files.manifest.tokens[4:])
        stored = np.load(BytesIO(two["npy"]))
        assert stored.dtype == (np.uint16 if tokens.dtype.itemsize == 2 else np.uint32)
        assert stored.tolist() == tokens.tolist()
    assert packed_sequences(files) == packed_sequences(tars)
    assert all(one.problem is None for one in verify(tmp_path / "out", full=True))
    vocabulary = vocabulary_of(tars)
    assert vocabulary is not None
    assert vocabulary.size == 60001
    again = pack_token_files(source, tmp_path / "out", options, samples_per_shard=7)
    assert again == report


def test_other_tokens_in_the_same_place_are_refused(tmp_path: Path) -> None:
    source, options = sources(tmp_path, "ended")
    pack_token_files(source, tmp_path / "out", options)
    write_flat(source, DOCUMENTS[::-1])
    with pytest.raises(DataError, match="already contains another pack"):
        pack_token_files(source, tmp_path / "out", options)


def test_what_cannot_be_packed(tmp_path: Path) -> None:
    assert pack_token_files(tmp_path, tmp_path / "out") is None
    with pytest.raises(DataError, match="end_of_text=1 is given, but it is not a token file"):
        pack_token_files(tmp_path, tmp_path / "out", TokenFiles(end_of_text=1))
    write_megatron(tmp_path / "x", [[1, 2]], "int32")
    np.array([1, -2], np.int32).tofile(tmp_path / "x.bin")
    with pytest.raises(DataError, match=r"document 0 has tokens -2\.\.1"):
        pack_token_files(tmp_path / "x", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".") == [
        "x.bin",
        "x.idx",
    ]
    with pytest.raises(DataError, match="samples_per_shard must be at least 1"):
        pack_token_files(tmp_path / "x", tmp_path / "out", samples_per_shard=0)


@pytest.mark.parametrize("kind", ["ended", "windows", "megatron", "arrow"])
def test_files_are_verified(tmp_path: Path, kind: str) -> None:
    source, options = sources(tmp_path, kind)
    manifest = open_dataset(source, token_files=options).manifest
    (found,) = verify(manifest, full=True)
    assert (found.problem, found.hashed, found.samples) == (None, False, manifest.total_samples)
    source.write_bytes(source.read_bytes()[:-4])
    (found,) = verify(manifest)
    assert found.problem is not None
    assert "when the dataset was opened" in found.problem
