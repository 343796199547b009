"""Token files of Megatron, whole and damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data import DataError, TokenFiles, open_dataset
from tests.unit.data.index.token_files.test_flat_file import contents, problem_of
from tests.unit.data.token_files import CODES, write_megatron

DOCUMENTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
documents = st.lists(st.lists(st.integers(0, 200), max_size=9), min_size=1, max_size=30)
HEAD = 34  # bytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(documents, st.sampled_from(sorted(CODES)), st.integers(1, 3), st.booleans())
def test_documents_are_read(
    tmp_path: Path, found: list[list[int]], dtype: str, sentences: int, modes: bool
) -> None:
    path = write_megatron(tmp_path / "x", found, dtype, sentences=sentences, modes=modes)
    for given_ in (path, tmp_path / "x", tmp_path / "x.idx"):
        assert contents(open_dataset(given_)) == found


def test_options_that_contradict_the_index(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "x", DOCUMENTS)
    assert len(open_dataset(path, token_files=TokenFiles(dtype="uint16", block_size=3))) == 4
    for options, message in (
        (TokenFiles(dtype="uint32"), "dtype=uint32 is given, but its tokens are uint16 by x.idx"),
        (TokenFiles(end_of_text=3), "end_of_text=3 is given, but x.idx says"),
        (TokenFiles(column="a"), "column=a is given"),
    ):
        with pytest.raises(DataError, match=message):
            open_dataset(path, token_files=options)


def patched(path: Path, offset: int, content: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[offset : offset + len(content)] = content
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("offset", "content", "message"),
    [
        (0, b"MMIDIDY", "not an index of Megatron"),
        (9, struct.pack("<Q", 2), "is of version 2"),
        (17, b"\7", "holds float32"),
        (17, b"\x63", "unknown dtype, of code 99"),
        (18, struct.pack("<Q", 2**62), "has .* bytes, and 4611686018427387904 sequences"),
        (26, struct.pack("<Q", 2**63), "has .* bytes"),
        (HEAD, struct.pack("<i", -1), "sequence 0 has a negative length"),
        (HEAD, struct.pack("<i", 2**31 - 1), "document 0 has 2147483647 tokens"),
        (HEAD + 16 + 8, struct.pack("<q", 2**62), "document 1 has 1 tokens from byte 4611"),
        (HEAD + 16 + 8, struct.pack("<q", -4), "document 1 has 1 tokens from byte -4 on"),
        (HEAD + 16 + 32, struct.pack("<q", 1), "is damaged: documents 0..3"),
        (HEAD + 16 + 32 + 8, struct.pack("<q", 2**62), "is damaged: documents 0..3"),
        (HEAD + 16 + 32 + 32, struct.pack("<q", 3), "is damaged: documents 0..3"),
    ],
)
def test_damaged_indexes(tmp_path: Path, offset: int, content: bytes, message: str) -> None:
    write_megatron(tmp_path / "x", DOCUMENTS)
    patched(tmp_path / "x.idx", offset, content)
    with pytest.raises(DataError, match=message) as raised:
        open_dataset(tmp_path / "x.idx")
    assert str(tmp_path / "x") in str(raised.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_damage_is_found_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever the index says, documents are within the file, or there is a DataError."""
    write_megatron(tmp_path / "x", DOCUMENTS, sentences=2)
    size = (tmp_path / "x.idx").stat().st_size
    for _ in range(data.draw(st.integers(1, 4))):
        patched(
            tmp_path / "x.idx",
            data.draw(st.integers(9, size - 1)),
            data.draw(st.binary(max_size=8)),
        )
    (tmp_path / "x.bin").write_bytes(
        (tmp_path / "x.bin").read_bytes()[: data.draw(st.integers(0, 40))]
    )
    problem = problem_of(tmp_path / "x.idx")
    assert problem is None or str(tmp_path / "x") in problem


@pytest.mark.parametrize("size", [0, 20, 60])
def test_truncated_indexes(tmp_path: Path, size: int) -> None:
    write_megatron(tmp_path / "x", DOCUMENTS)
    index = tmp_path / "x.idx"
    index.write_bytes(index.read_bytes()[:size])
    with pytest.raises(DataError, match=r"x\.idx"):
        open_dataset(tmp_path / "x.bin")


def test_truncated_tokens(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "x", DOCUMENTS)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(
        DataError, match="document 3 has 4 tokens from byte 12 on, and the file ends"
    ):
        open_dataset(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="not a multiple of the 2 bytes"):
        open_dataset(path)
    path.unlink()
    with pytest.raises(DataError, match=r"x\.bin, is not beside it"):
        open_dataset(tmp_path / "x.idx")


def test_sequences_of_a_document_that_lie_apart(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", DOCUMENTS, sentences=2)
    patched(tmp_path / "x.idx", HEAD + 8 * 4 + 8, struct.pack("<q", 0))
    with pytest.raises(DataError, match="sequence 1 does not follow the one before it"):
        open_dataset(tmp_path / "x.bin")


def test_a_file_beside_another_index(tmp_path: Path) -> None:
    """Such as the one of DALI for a tar; a flat file needs none."""
    path = write_megatron(tmp_path / "x", DOCUMENTS)
    (tmp_path / "x.idx").write_text("v1.2 4")
    with pytest.raises(DataError, match=r"x\.idx beside it is not an index of Megatron"):
        open_dataset(path, token_files=TokenFiles(block_size=2))
    (tmp_path / "x.tar").write_bytes(b"")
    assert len(open_dataset(path, token_files=TokenFiles(block_size=2))) == 5


def test_an_index_that_changes_is_refused(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "x", DOCUMENTS)
    dataset = open_dataset(path)
    write_megatron(tmp_path / "x", [[1, 2], [3, 4], [5, 6], [7, 8, 9, 10]])
    with pytest.raises(DataError, match="holds other documents"):
        dataset.read(0)
