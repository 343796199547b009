"""What is written before a submission."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from checkpointing import Checkpointer, CheckpointError, Store, list_run, verify
from checkpointing.store.pins_and_labels import pin, pins
from hpckit.config.spec_parser import read_spec
from hpckit.rundir.code_snapshot.snapshot import CodeSnapshotError, Project, find_project
from hpckit.rundir.directory import LINKS, RunDir, run_name
from hpckit.submit.preparation import move_aside
from hpckit.submit.submission_files import add_submission, point_to, versions
from hpckit.system.atomic_files import read_json
from tests.unit.hpckit.specs_and_processes import make_spec


def git(folder: Path, *arguments: str) -> str:
    me = ("-c", "user.name=me", "-c", "user.email=me@example.com")
    command = ["git", "-C", str(folder), *me, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.py").write_text("first\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "first")
    return find_project(root)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "run").mkdir()
    return RunDir(tmp_path / "run")


def test_submissions_are_numbered_kept_and_the_links_show_the_newest(
    run: RunDir, project: Project
) -> None:
    assert add_submission(run, make_spec(), ["train.seed=1"], project) == 1
    (project.root / "a.py").write_text("second\n")
    assert add_submission(run, make_spec({"train.seed": 2}), ["train.seed=2"], project) == 2
    assert run.submission_numbers() == [1, 2]
    assert read_spec(run.spec(1)).train.seed == 1
    assert (run.code(1) / "a.py").read_text() == "first\n"
    assert read_spec(run.path / "spec.yaml") == read_spec(run.spec(2))
    assert (run.path / "code" / "a.py").read_text() == "second\n"
    assert yaml.safe_load((run.path / "overrides.yaml").read_text()) == ["train.seed=2"]
    assert sorted(entry.name for entry in run.path.iterdir()) == sorted(
        [*LINKS, "current", "submissions"]
    )
    assert len(list(run.submissions.iterdir())) == 2


def test_links_are_relative_so_a_run_can_be_moved(run: RunDir, project: Project) -> None:
    add_submission(run, make_spec(), [], project)
    moved = run.path.rename(run.path.with_name("moved"))
    assert read_spec(moved / "spec.yaml") == make_spec()
    assert (moved / "code" / "a.py").is_file()


def test_links_can_be_pointed_back(run: RunDir, project: Project) -> None:
    for seed in (1, 2):
        add_submission(run, make_spec({"train.seed": seed}), [], project)
    point_to(run, 1)
    assert read_spec(run.path / "spec.yaml").train.seed == 1


def test_the_manifest_says_what_was_submitted_from_where(run: RunDir, project: Project) -> None:
    add_submission(run, make_spec(), [], project)
    (project.root / "a.py").write_text("changed\n")
    add_submission(run, make_spec(), [], project)
    before, after = (read_json(run.submission(n) / "manifest.json") for n in (1, 2))
    revision = git(project.root, "rev-parse", "HEAD").strip()
    assert before["git"] == {"revision": revision, "branch": "main", "dirty": False}
    assert after["git"] == {"revision": revision, "branch": "main", "dirty": True}
    assert after["project"] == str(project.root)
    assert after["command"] == sys.argv
    assert after["created"] >= before["created"]
    assert after["snapshot"]["left_out"] == []
    assert after["snapshot"]["files"] > 10
    assert (run.submission(1) / "dirty.diff").read_text() == ""
    assert "+changed" in (run.submission(2) / "dirty.diff").read_text()


def test_a_submission_that_fails_half_way_is_none(
    run: RunDir, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_submission(run, make_spec(), [], project)
    with monkeypatch.context() as patch:
        patch.setattr("hpckit.rundir.code_snapshot.snapshot.MAX_FILES", 0)
        with pytest.raises(CodeSnapshotError):
            add_submission(run, make_spec({"train.seed": 2}), [], project)
    assert run.submission_numbers() == [1]
    assert read_spec(run.path / "spec.yaml") == make_spec()
    assert add_submission(run, make_spec(), [], project) == 2


def test_versions_are_told_of_what_is_installed() -> None:
    found = versions()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "numpy", "hydra-core", "submitit", "hpckit-torch"} <= found.keys()


def test_an_earlier_run_is_moved_to_a_name_that_is_free(run: RunDir) -> None:
    names = []
    for n in range(3):
        run.path.mkdir(exist_ok=True)
        (run.path / "mark").write_text(str(n))
        names.append(move_aside(run, make_spec()))
    assert [path.name for path in names] == ["run.old1", "run.old2", "run.old3"]
    assert [(path / "mark").read_text() for path in names] == ["0", "1", "2"]
    assert not run.path.exists()


def saved(store: Path, name: str, step: int) -> None:
    checkpointer = Checkpointer(store, run=name)
    checkpointer.save(step, {"w": torch.full((3,), float(step))})
    checkpointer.close()


def test_an_earlier_run_in_a_store_elsewhere_gets_the_same_new_name(
    tmp_path: Path, run: RunDir
) -> None:
    store = tmp_path / "store"
    spec = make_spec({"checkpoint.url": str(store)})
    name = run_name(spec)
    saved(store, f"{name}.old1", 7)  # of a directory that was deleted since
    saved(store, name, 5)
    (info,) = list_run(store, name)
    opened = Store.open(store)
    pin(opened, info.save, "the one that was published")
    opened.close()
    assert move_aside(run, spec).name == "run.old2"
    assert list_run(store, name) == []
    (moved,) = list_run(store, f"{name}.old2")
    assert (moved.step, moved.id, moved.state) == (5, info.id, "committed")
    assert verify(store, moved) == []
    opened = Store.open(store)
    assert pins(opened, f"{name}.old2") == {info.id: "pinned: the one that was published"}
    opened.close()
    assert [i.step for i in list_run(store, f"{name}.old1")] == [7]


def test_a_store_that_fails_leaves_everything_where_it_was(tmp_path: Path, run: RunDir) -> None:
    store = tmp_path / "store"
    spec = make_spec({"checkpoint.url": str(store)})
    saved(store, run_name(spec), 5)
    record = store / "hpckit.json"
    record.write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"hpckit\.json"):
        move_aside(run, spec)
    assert run.path.is_dir()
