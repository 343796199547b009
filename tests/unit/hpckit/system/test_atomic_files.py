"""Small files: whole or not there, and nothing left beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpckit.system.atomic_files import read_json, write_json, write_text
from tests.unit.hpckit.specs_and_processes import python

WRITE_FOR_EVER = """
import sys; from pathlib import Path; from hpckit.system.atomic_files import write_json
path, n = Path(sys.argv[1]), 0
while True:
    n += 1
    write_json(path, {"n": n, "filling": "x" * 100_000})
    if n == 1: print("going", flush=True)
"""


def test_what_was_there_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    write_json(path, {"n": 1, "text": "é"})
    write_json(path, {"n": 2})
    assert read_json(path) == {"n": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_there_is_no_value_where_there_is_no_file(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None


def test_a_reader_never_sees_half_a_file_though_its_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    with python(WRITE_FOR_EVER, path) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        for _ in range(200):
            assert len(json.loads(path.read_text())["filling"]) == 100_000
        writer.kill()
        writer.wait()
    assert len(read_json(path)["filling"]) == 100_000
