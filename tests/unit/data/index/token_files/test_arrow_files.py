"""Arrow files of Hugging Face datasets, whole and damaged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data import DataError, TokenFiles, open_dataset
from tests.unit.data.index.token_files.test_flat_file import contents, problem_of
from tests.unit.data.token_files import write_arrow, write_saved_dataset

pa: Any = pytest.importorskip("pyarrow")

DOCUMENTS = [[1, 2, 3], [], [4], [5, 6], [7, 8, 9, 10]]
documents = st.lists(st.lists(st.integers(0, 200), max_size=9), min_size=1, max_size=20)
KINDS = [pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint16())]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(documents, st.sampled_from(KINDS), st.booleans())
def test_rows_are_documents(
    tmp_path: Path, found: list[list[int]], kind: Any, is_file: bool
) -> None:
    path = write_arrow(tmp_path / "x.arrow", found, kind, is_file=is_file)
    assert contents(open_dataset(path)) == found


def test_lists_of_equal_length(tmp_path: Path) -> None:
    found = [[n, n + 1] for n in range(7)]
    path = write_arrow(tmp_path / "x.arrow", found, pa.list_(pa.int32(), 2))
    assert contents(open_dataset(path)) == found


def test_a_saved_dataset(tmp_path: Path) -> None:
    folder = write_saved_dataset(tmp_path / "d", DOCUMENTS)
    assert contents(open_dataset(folder)) == DOCUMENTS
    assert contents(open_dataset(f"{folder}/data-*.arrow")) == DOCUMENTS


def test_splits_are_named(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    with pytest.raises(DataError, match=f"the splits train, test: .* such as {tmp_path}/train"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("no", "state.json cannot be read"),
        ("[]", "is no JSON object"),
        ("{}", "lists no files"),
        ('{"_data_files": [{"filename": "../../etc/x.arrow"}]}', "is not a file of the folder"),
        ('{"_data_files": ["x"]}', "None is not a file of the folder"),
        ('{"_data_files": [{"filename": "away.arrow"}]}', "away.arrow.* cannot be read"),
        ('{"_data_files": [], "_indices_data_files": [{"filename": "i"}]}', "flatten_indices"),
    ],
)
def test_damaged_states(tmp_path: Path, state: str, message: str) -> None:
    folder = write_saved_dataset(tmp_path / "d", DOCUMENTS)
    (folder / "state.json").write_text(state)
    with pytest.raises(DataError, match=message):
        open_dataset(folder)


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_arrow(tmp_path / "x.arrow", DOCUMENTS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="pip install pyarrow"):
        open_dataset(path)


def test_options_that_contradict_the_file(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "x.arrow", DOCUMENTS)
    assert len(open_dataset(path, token_files=TokenFiles(dtype="int32", column="input_ids"))) == 5
    for options, message in (
        (TokenFiles(dtype="uint16"), "dtype=uint16 is given, but its column 'input_ids' is of int"),
        (TokenFiles(end_of_text=3), "each row of an Arrow file is a document"),
        (TokenFiles(column="tokens"), r"0 columns 'tokens'; .* \['input_ids'\]: give column=NAME"),
        (TokenFiles(column="text"), "column 'text' is of type string"),
    ):
        with pytest.raises(DataError, match=message):
            open_dataset(path, token_files=options)


def test_files_that_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    compressed = pa.ipc.IpcWriteOptions(compression="lz4")
    write_arrow(path, [[1] * 1000], is_file=True, options=compressed)
    with pytest.raises(DataError, match="compressed"):
        open_dataset(path)
    write_arrow(path, DOCUMENTS)
    path.write_bytes(path.read_bytes().replace(b"input_ids", b"\xffnput_ids"))
    with pytest.raises(DataError, match="is not a whole Arrow file"):
        open_dataset(path)
    write_arrow(path, [])
    with pytest.raises(DataError, match="has no rows"):
        open_dataset(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        open_dataset(path)
    rows = pa.table({"input_ids": pa.array([[1, 2], None], pa.list_(pa.int32()))})
    with pa.ipc.new_stream(str(path), rows.schema) as writer:
        writer.write_table(rows)
    with pytest.raises(DataError, match="without a value"):
        open_dataset(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_damage_is_found_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    path = write_arrow(tmp_path / "x.arrow", DOCUMENTS, is_file=data.draw(st.booleans()))
    content = bytearray(path.read_bytes())
    content = content[: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + 4] = data.draw(st.binary(min_size=4, max_size=4))
    path.write_bytes(content)
    problem = problem_of(path)
    assert problem is None or str(path) in problem
