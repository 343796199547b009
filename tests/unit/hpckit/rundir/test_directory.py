"""Where everything of a run lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.config.run_identity import identity
from hpckit.rundir.directory import (
    RunDir,
    checkpoint_root,
    find_run,
    lock_paths,
    run_directory,
    run_name,
)
from tests.unit.hpckit.specs_and_processes import make_spec


def test_the_directory_is_named_after_name_and_identity(tmp_path: Path) -> None:
    spec = make_spec({"name": "first", "root": "runs"})
    run = run_directory(spec, tmp_path)
    assert run.path == tmp_path / "runs" / f"first-{identity(spec)}"
    assert run.name == f"first-{identity(spec)}"


def test_an_absolute_root_stays_where_it_is(tmp_path: Path) -> None:
    spec = make_spec({"root": str(tmp_path / "elsewhere")})
    assert run_directory(spec, Path("/nowhere")).path.parent == tmp_path / "elsewhere"


def test_every_path_lies_inside_and_no_two_are_the_same(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    properties = [name for name, what in vars(RunDir).items() if isinstance(what, property)]
    paths = [getattr(run, name) for name in properties if name != "name"]
    paths += [run.spec(1), run.spec(2), run.code(1), run.exit_report(1, 0), run.exit_report(1, 1)]
    paths += [run.rank_log(g, n, r) for g in (1, 2) for n in (0, 1) for r in (0, 1)]
    paths += [run.rank_error(1, 0, r, a) for r in (0, 1) for a in (0, 1)]
    assert len(set(paths)) == len(paths)
    assert all(run.path in path.parents for path in paths)
    assert not run.path.exists()


def test_numbers_are_read_back_from_the_names_given_to_them(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert (run.submission_numbers(), run.generation_numbers()) == ([], [])
    for number in (2, 10, 1, 1000):
        run.submission(number).mkdir(parents=True)
        run.node_logs(number, 0).mkdir(parents=True)
    (run.submissions / ".011.abcd").mkdir()
    (run.logs / "supervisor.log").touch()
    assert run.submission_numbers() == [1, 2, 10, 1000]
    assert run.generation_numbers() == [1, 2, 10, 1000]


@pytest.mark.parametrize(
    ("url", "folder"), [("/ckpts", "/ckpts"), ("file:///my%20ckpts", "/my ckpts")]
)
def test_a_store_elsewhere_has_a_lock_of_its_own(url: str, folder: str) -> None:
    spec = make_spec({"checkpoint.url": url})
    run = RunDir(Path("/runs/run"))
    assert lock_paths(spec, run) == [run.lock, Path(folder) / "runs" / run_name(spec) / "lock"]
    assert checkpoint_root(spec, run) == url


def test_a_store_that_is_no_folder_has_no_lock() -> None:
    run = RunDir(Path("/runs/run"))
    for url in ("s3://bucket/ckpts", None):
        assert lock_paths(make_spec({"checkpoint.url": url}), run) == [run.lock]
    assert checkpoint_root(make_spec({"checkpoint.url": None}), run) == "/runs/run/checkpoints"


def test_a_run_is_found_from_anywhere_inside_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.submission(1).mkdir(parents=True)
    assert find_run(run.path) == run
    assert find_run(run.submission(1)) == run
    assert find_run(run.path / "logs" / "not-there-yet") == run


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        find_run(tmp_path)
