"""Which runs are served, and the keys that name them."""

from __future__ import annotations

import re
from pathlib import Path

from hpckit.rundir.directory import RunDir
from hpckit.serve.run_catalog import RunCatalog, keys_of
from tests.unit.hpckit.report.sample_runs import submitted


def test_keys_are_plain_and_differ() -> None:
    names = ("a/gpt-1", "b/gpt-1", "a/..", "a/x y", "a/<script>", "a/\udcff", "a/é", "a/plain.v2")
    keys = keys_of([Path("/runs") / name for name in names])
    assert len(set(keys.values())) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9._~-]+", key) for key in keys.values())
    assert not any(key.startswith(".") for key in keys.values())
    assert keys[Path("/runs/a/plain.v2")] == "plain.v2"
    assert keys[Path("/runs/a/gpt-1")].startswith("gpt-1~")


def test_runs_of_a_folder_are_served_also_those_that_come_later(tmp_path: Path) -> None:
    other = submitted(tmp_path / "elsewhere" / "b-2")
    catalog = RunCatalog([other], [tmp_path / "runs", tmp_path / "none"])
    assert list(catalog.read().runs) == ["b-2"]
    (tmp_path / "runs" / "notes").mkdir(parents=True)
    submitted(tmp_path / "runs" / "a-1")
    found = catalog.read()
    assert sorted(found.runs) == ["a-1", "b-2"]
    assert found.problems == ()


def test_a_folder_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (found,) = RunCatalog([], [tmp_path / "file"]).read().problems
    assert "Not a directory" in found
    run = RunDir(tmp_path / "run")
    assert [one.run for one in RunCatalog([run, run], []).read().runs.values()] == [run]
