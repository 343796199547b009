"""Flat files of tokens: documents that end with a token, windows, and files that are none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data import DataError, Dataset, TokenFiles, open_dataset
from data.index.token_files import flat_file
from tests.unit.data.token_files import write_flat

END = 7
tokens = st.lists(st.integers(0, 9), min_size=1, max_size=200)


def contents(dataset: Dataset) -> list[list[int]]:
    kind = str(dataset.manifest.tokens).removeprefix("bin:")
    found = [dataset.read(i)["bin"] for i in range(len(dataset))]
    return [np.frombuffer(one, kind).tolist() for one in found]


def problem_of(path: Path) -> str | None:
    """What is said about a file that may be damaged, all of which is read."""
    try:
        assert sum(map(len, contents(open_dataset(path)))) < 10_000
    except DataError as error:
        return str(error)
    return None


def split_at(end: int, found: list[int]) -> list[list[int]]:
    documents: list[list[int]] = [[]]
    for token in found:
        documents[-1].append(token)
        if token == end:
            documents.append([])
    return [one for one in documents if one]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tokens.filter(lambda found: END in found), st.sampled_from(["uint16", "uint32", "int64"]))
def test_documents_end_after_the_token(tmp_path: Path, found: list[int], dtype: str) -> None:
    path = write_flat(tmp_path / "train.bin", [found], dtype)
    options = TokenFiles(dtype=dtype, end_of_text=END)
    due = split_at(END, found)
    for _ in range(2):  # found, and then read from the index beside the file
        dataset = open_dataset(path, token_files=options)
        assert contents(dataset) == due
        assert dataset.manifest.n_tokens is not None
        assert int(dataset.manifest.n_tokens.sum()) == len(found)
    (tmp_path / "train.bin.index").unlink()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tokens, st.integers(1, 50))
def test_windows_have_every_token_once(tmp_path: Path, found: list[int], length: int) -> None:
    path = write_flat(tmp_path / "train.bin", [found])
    windows = contents(open_dataset(path, token_files=TokenFiles(block_size=length)))
    assert windows == [found[at : at + length] for at in range(0, len(found), length)]


def test_chunks_of_the_scan_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = np.random.default_rng(1).integers(0, 10, 1000).tolist()
    path = write_flat(tmp_path / "train.bin", [found])
    monkeypatch.setattr(flat_file, "_CHUNK", 16)
    assert contents(open_dataset(path, token_files=TokenFiles(end_of_text=END))) == split_at(
        END, found
    )


def test_the_index_of_another_file_or_token_is_not_used(tmp_path: Path) -> None:
    path = write_flat(tmp_path / "train.bin", [[1, END, 2, END]])
    assert len(open_dataset(path, token_files=TokenFiles(end_of_text=END))) == 2
    assert len(open_dataset(path, token_files=TokenFiles(end_of_text=1))) == 2
    write_flat(path, [[1, 2, 3, END]])
    assert len(open_dataset(path, token_files=TokenFiles(end_of_text=END))) == 1
    (tmp_path / "train.bin.index").write_bytes(b"damaged")
    assert len(open_dataset(path, token_files=TokenFiles(end_of_text=END))) == 1


def test_the_index_is_kept_elsewhere_if_it_cannot_be_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_flat(tmp_path / "train.bin", [[1, END, 2, END]])
    (tmp_path / "train.bin.index").mkdir()  # in its way
    options = TokenFiles(end_of_text=END)
    open_dataset(path, token_files=options)
    monkeypatch.setattr(flat_file, "_scan", None)
    assert len(open_dataset(path, token_files=options)) == 2


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", TokenFiles(block_size=4), "is empty"),
        (
            b"abc",
            TokenFiles(block_size=4),
            "3 bytes, which is not a multiple of the 2 bytes of uint16",
        ),
        (b"abcdef", TokenFiles(block_size=4, dtype="uint32"), "not a multiple of the 4 bytes"),
        (b"abcd", TokenFiles(), "give end_of_text=TOKEN, or block_size=TOKENS"),
        (b"abcd", TokenFiles(end_of_text=5), "end_of_text=5 does not occur in its 2 tokens"),
        (b"abcd", TokenFiles(block_size=2, column="x"), "column=x is given"),
        (
            np.array([20240520, 1, 2, 3], "<i4").tobytes(),
            TokenFiles(block_size=2),
            "has the header of llm.c",
        ),
        (b"\x93NUMPY\x01\x00", TokenFiles(block_size=2), "is a .npy file"),
        (
            np.array([50256, 13, 70000], "<u4").tobytes(),
            TokenFiles(block_size=2),
            "looks like uint32",
        ),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, content: bytes, options: TokenFiles, message: str
) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        open_dataset(path, token_files=options)
    assert str(path) in str(raised.value)


def test_tokens_of_32_bits_are_read_where_they_are_said_to_be(tmp_path: Path) -> None:
    path = write_flat(tmp_path / "train.bin", [[50256, 13, 70000]], "uint32")
    wide = open_dataset(path, token_files=TokenFiles(block_size=9, dtype="uint32"))
    assert contents(wide) == [[50256, 13, 70000]]
    narrow = open_dataset(path, token_files=TokenFiles(block_size=9, dtype="uint16"))
    assert len(contents(narrow)[0]) == 6


def test_a_token_that_is_too_frequent_for_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its documents would take more memory than the tokens."""
    monkeypatch.setattr(flat_file, "_MANY_DOCUMENTS", 100)
    path = write_flat(tmp_path / "train.bin", [[1, 0] * 200])
    with pytest.raises(DataError, match="too often for the end of a text"):
        open_dataset(path, token_files=TokenFiles(end_of_text=0))


@pytest.mark.parametrize("options", [TokenFiles(end_of_text=END), TokenFiles(block_size=3)])
def test_a_file_that_changes_is_refused(tmp_path: Path, options: TokenFiles) -> None:
    path = write_flat(tmp_path / "train.bin", [[1, 2, END, 3, 4, END]])
    dataset = open_dataset(path, token_files=options)
    write_flat(path, [[1, 2, END, 3, 5, END]])
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="has changed since the dataset was opened"):
        dataset.read(0)
    assert open_dataset(path, token_files=options).fingerprint != dataset.fingerprint


def test_a_file_that_is_only_touched_is_the_same(tmp_path: Path) -> None:
    path = write_flat(tmp_path / "train.bin", [[1, 2, 3]])
    dataset = open_dataset(path, token_files=TokenFiles(block_size=2))
    os.utime(path, ns=(1, 1))
    assert len(dataset.read(0)["bin"]) == 4
    assert open_dataset(path, token_files=TokenFiles(block_size=2)).fingerprint == (
        dataset.fingerprint
    )


def test_a_file_that_is_truncated_while_it_is_read(tmp_path: Path) -> None:
    path = write_flat(tmp_path / "train.bin", [list(range(100))])
    dataset = open_dataset(path, token_files=TokenFiles(block_size=10))
    dataset.read(0)
    os.truncate(path, 50)
    for _ in range(2):
        with pytest.raises(DataError, match="ends"):
            dataset.read(9)
