"""The index of a shard: what it answers, what it is identified by, and content that cannot be."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.errors import IndexFileError
from data.index.shard import sidecar
from data.index.shard.shard_index import ShardIndex, checked
from data.index.shard.shard_scan import StreamedShardIndexer, scan_shard, with_tokens
from tests.unit.data.tars import Files, by_index, by_tarfile, tar_bytes, write_tar

FILES: Files = [("a.txt", b"12"), ("a.json", b"{}"), ("b.txt", b""), ("c.txt", b"3" * 700)]
LONG = "d" * 90 + "/" + "f" * 90


def index_of(files: Files, format: int = tarfile.PAX_FORMAT) -> ShardIndex:
    passing = StreamedShardIndexer("s.tar")
    passing.feed(tar_bytes(files, format))
    return passing.finish()


def test_samples_answer_one_by_one_and_together() -> None:
    content, index = tar_bytes(FILES), index_of(FILES)
    assert by_index(index) == by_tarfile(content)
    assert index.extensions == ("txt", "json")
    begins, ends = index.spans([[2, 0], [1, 1]])
    assert [begins.dtype.name, ends.dtype.name] == ["int64", "int64"]
    spans = np.stack([begins, ends], axis=-1).tolist()
    assert spans == [[list(index.span(2)), list(index.span(0))], [list(index.span(1))] * 2]
    assert index.span(0) == (0, 512 + 512 + 512 + 2)
    assert content[index.span(2)[0] :].startswith(b"c.txt")
    assert index.spans([])[0].shape == (0,)


def test_sample_numbers_are_checked() -> None:
    index = index_of(FILES)
    for wrong in (-1, 3):
        for call in (index.key, index.members, index.span, lambda i: index.spans([i])):
            with pytest.raises(IndexError, match=r"0\.\.2"):
                call(wrong)


def test_the_digest_is_of_keys_extensions_sizes_and_order() -> None:
    digest = index_of(FILES).digest
    others: list[Files] = [
        FILES[:-1],
        [("x.txt", b"12"), *FILES[1:]],
        [("a.cls", b"12"), *FILES[1:]],
        [("a.txt", b"1"), *FILES[1:]],
        [FILES[1], FILES[0], *FILES[2:]],
        [*FILES[2:], *FILES[:2]],
        [],
        [("ab.txt", b""), ("c.txt", b"")],
        [("a.txt", b""), ("bc.txt", b"")],
        [("a.xy", b""), ("a.z", b"")],
        [("a.x", b""), ("a.yz", b"")],
    ]
    digests = [digest, *(index_of(files).digest for files in others)]
    assert len(set(digests)) == len(digests)


def test_the_digest_is_not_of_place_dialect_or_content(tmp_path: Path) -> None:
    files = [(f"{LONG}.txt", b"12"), ("b.txt", b"3")]
    other = [(f"{LONG}.txt", b"45"), ("README", b"passed over"), ("b.txt", b"6")]
    one = index_of(files, tarfile.PAX_FORMAT)
    assert one.digest == index_of(other, tarfile.GNU_FORMAT).digest
    path = write_tar(tmp_path / "other.tar", files)
    assert one.digest == scan_shard(path, hash=True).digest
    kept = sidecar.from_bytes(sidecar.to_bytes(one), "here")
    assert (kept.digest, by_index(kept)) == (one.digest, by_index(one))


def test_a_sidecar_keeps_everything() -> None:
    index = with_tokens(
        index_of([("\udce9.é", b"x" * 70_000), *FILES]), [1, 2, 3, 2**32 - 1], "npy"
    )
    kept = sidecar.from_bytes(sidecar.to_bytes(index), "here")
    assert by_index(kept) == by_index(index)
    assert (kept.bytes, kept.tag, kept.hash, kept.tokens) == (
        index.bytes,
        index.tag,
        index.hash,
        "npy",
    )
    assert kept.n_tokens is not None
    assert kept.n_tokens.tolist() == [1, 2, 3, 2**32 - 1]


def changed(**columns: Any) -> dict[str, Any]:
    found = dict(with_tokens(index_of(FILES), [1, 2, 3], None).columns)
    for name, values in columns.items():
        if values is None:
            del found[name]
        else:
            found[name] = np.array(values)
    return found


U8 = 2**64 - 1


@pytest.mark.parametrize(
    "columns",
    [
        changed(offset=None),
        changed(keys=None),
        changed(begin=[0]),
        changed(first=[0, 2, 3]),
        changed(first=[0, 2, 3, 5]),
        changed(first=[1, 2, 3, 4]),
        changed(first=[0, 2, 2, 4]),
        changed(first=[0, 3, 2, 4]),
        changed(key_at=[0, 1, 2, 4]),
        changed(key_at=[0, 2, 1, 3]),
        changed(key_at=[]),
        changed(extension_at=[0, 3, 8]),
        changed(extension_at=[]),
        changed(extension=[0, 1, 2, 0]),
        changed(offset=[0, 1536, 2560, 3072]),
        changed(offset=[512, 1536, 2560, U8]),
        changed(offset=[512, 1536, 2560, 10240 - 699]),
        changed(offset=[1536, 512, 2560, 3072]),
        changed(size=[U8, 2, 0, 700]),
        changed(size=[600, 2, 0, 700]),
        changed(begin=[0, 2560, 2560]),
        changed(begin=[U8 // 2, 2048, 2560]),
        changed(tokens=[1, 2]),
    ],
)
def test_columns_that_cannot_be_are_refused(columns: dict[str, Any]) -> None:
    meta = {"bytes": 10240, "tag": None, "hash": None, "tokens": None}
    with pytest.raises(IndexFileError, match="is not an index of a shard"):
        checked(meta, columns, "here")


@pytest.mark.parametrize(
    "meta", [{}, {"bytes": "1"}, {"bytes": -1}, {"bytes": True}, {"bytes": 10240, "tag": 1}]
)
def test_facts_that_cannot_be_are_refused(meta: dict[str, Any]) -> None:
    with pytest.raises(IndexFileError, match="is not an index of a shard"):
        checked(meta, changed(), "here")
    assert len(checked({"bytes": 10240}, changed(), "here")) == 3
