"""Snapshots that share files: what one holds stays as it was, whatever becomes of the others and of
the project."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.rundir.code_snapshot import shared_copies
from hpckit.rundir.code_snapshot.shared_copies import (
    SETTLED_S,
    FileState,
    is_settled,
    run_in_parallel,
)
from hpckit.rundir.code_snapshot.snapshot import CodeSnapshot, Project, copy_snapshot, take_snapshot
from tests.effort import times

Tree = dict[str, tuple[bytes, bool]]
"""Contents, and whether it can be run, by name."""


@pytest.fixture(autouse=True)
def _old_enough(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody can set the time of a change: so these files count as old as soon as they are there,
    and each change waits for the clock."""
    with monkeypatch.context() as patch:
        patch.setattr(shared_copies, "SETTLED_S", -10.0)
        patch.setattr("hpckit.rundir.code_snapshot.snapshot.PACKAGES", ())
        yield


def next_tick(folder: Path) -> None:
    """What is changed from here on has another time than what was changed before."""
    mark = folder / ".tick"
    mark.touch()
    before = mark.stat().st_ctime_ns
    while mark.stat().st_ctime_ns == before:
        time.sleep(0.001)
        mark.touch()
    mark.unlink()


def change(path: Path, content: bytes) -> None:
    """As far as a program can: without another size or time of modification."""
    next_tick(path.parent.parent)
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def tree(folder: Path) -> Tree:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in folder.rglob("*.py")
    }


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    for name in ("a.py", "b.py", "sub/c.py"):
        (root / name).write_text(f"# {name}\n")
    return Project(root, git=False)


def snapshots(project: Project, place: Path, count: int) -> Iterator[tuple[Path, CodeSnapshot]]:
    """One after the other, each with the one before it in view; as the caller goes on."""
    earlier = None
    for n in range(count):
        (place / f"{n}").mkdir(parents=True)
        code = place / f"{n}" / "code"
        yield code, take_snapshot(project, code, earlier)
        earlier = code


def test_what_has_not_changed_is_one_file(tmp_path: Path, project: Project) -> None:
    (first, _), (second, found) = snapshots(project, tmp_path / "s", 2)
    assert (found.files, found.shared) == (3, 3)
    for name in ("a.py", "sub/c.py"):
        assert (first / name).samefile(second / name)
        assert not (second / name).samefile(project.root / name), "an edit would reach it"


def test_a_change_that_keeps_size_and_date_is_seen(tmp_path: Path, project: Project) -> None:
    taking = snapshots(project, tmp_path / "s", 3)
    first, _ = next(taking)
    change(project.root / "a.py", b"# A.PY\n")
    second, found = next(taking)
    assert found.shared == 2
    assert (first / "a.py").read_bytes() == b"# a.py\n"
    assert (second / "a.py").read_bytes() == b"# A.PY\n"
    third, found = next(taking)
    assert found.shared == 3
    assert (third / "a.py").samefile(second / "a.py")


def test_a_snapshot_outlives_those_before_it(tmp_path: Path, project: Project) -> None:
    (first, _), (second, _) = snapshots(project, tmp_path / "s", 2)
    shutil.rmtree(first)
    assert tree(second) == tree(project.root)


def test_nobody_writes_to_a_snapshot_by_accident(tmp_path: Path, project: Project) -> None:
    (project.root / "a.py").chmod(0o775)
    ((code, _),) = snapshots(project, tmp_path / "s", 1)
    assert (code / "a.py").stat().st_mode & 0o777 == 0o555 & ~umask()
    assert (code / "b.py").stat().st_mode & 0o777 == 0o444 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("how", ["written to", "dated back", "made writable", "gone", "a link"])
def test_what_is_not_as_it_was_copied_is_not_shared(
    tmp_path: Path, project: Project, how: str
) -> None:
    taking = snapshots(project, tmp_path / "s", 2)
    first, _ = next(taking)
    spoil(first / "a.py", how)
    second, found = next(taking)
    assert found.shared == 2
    assert tree(second) == tree(project.root)


def spoil(path: Path, how: str) -> None:
    mode = path.stat().st_mode
    match how:
        case "written to":
            path.chmod(0o644)
            path.write_text("other.\n")
            path.chmod(mode)
        case "dated back":
            os.utime(path, (1, 1))
        case "made writable":
            path.chmod(0o644)
        case "gone":
            path.unlink()
        case _:
            path.rename(path.with_name("elsewhere"))
            path.symlink_to("elsewhere")


def test_a_file_that_has_just_been_changed_is_copied_the_next_time(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_copies, "SETTLED_S", SETTLED_S)
    taking = snapshots(project, tmp_path / "s", 2)
    first, _ = next(taking)
    (project.root / "a.py").write_text("# racy\n")  # in the same tick, maybe
    second, found = next(taking)
    assert found.shared == 0
    assert tree(second) == tree(project.root)
    assert (first / "a.py").read_text() == "# a.py\n"


@pytest.mark.parametrize(
    ("age_s", "expected"), [(-5, False), (0, False), (299, False), (301, True)]
)
def test_a_state_is_settled_when_its_change_is_long_ago(
    monkeypatch: pytest.MonkeyPatch, age_s: float, expected: bool
) -> None:
    monkeypatch.setattr(shared_copies, "SETTLED_S", SETTLED_S)
    now_s = 1.7e9
    state = FileState(size=1, mtime_ns=0, ctime_ns=int((now_s - age_s) * 1e9), number=1)
    assert is_settled(state, now_s) is expected


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version":2}', '{"version":1,"files":{"a":[1]}}']
)
def test_a_record_that_is_not_understood_is_none(
    tmp_path: Path, project: Project, text: str
) -> None:
    taking = snapshots(project, tmp_path / "s", 2)
    first, _ = next(taking)
    first.with_name("copied.json").write_text(text)
    second, found = next(taking)
    assert found.shared == 0
    assert tree(second) == tree(project.root)


def test_on_another_file_system_all_is_copied(tmp_path: Path, project: Project) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if Path(other).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("it is the same one")
        ((there, _),) = snapshots(project, Path(other), 1)
        found = take_snapshot(project, tmp_path / "code", there)
    assert found.shared == 0
    assert tree(tmp_path / "code") == tree(project.root)


def test_a_copy_of_a_snapshot_shares_its_files_and_can_be_shared_from(
    tmp_path: Path, project: Project
) -> None:
    (project.root / "link").symlink_to("sub")
    ((code, _),) = snapshots(project, tmp_path / "s", 1)
    (code / "a.py").chmod(0o644)  # as all were in an earlier release
    (tmp_path / "again").mkdir()
    again = tmp_path / "again" / "code"
    copy_snapshot(code, again)
    assert (again / "link").is_symlink()
    assert (again / "sub/c.py").samefile(code / "sub/c.py")
    assert not (again / "a.py").samefile(code / "a.py")
    assert tree(again) == tree(project.root)
    assert take_snapshot(project, tmp_path / "third", again).shared == 2


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["change", "replace", "remove", "run", "swap", "snapshot", "forget"]),
        st.sampled_from(["a.py", "b.py", "sub/c.py"]),
        st.binary(min_size=4, max_size=4),
    ),
    max_size=12,
)


@settings(max_examples=times(25), deadline=None)
@given(ACTIONS)
def test_each_snapshot_stays_what_the_project_was(actions: list[tuple[str, str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "project"
        (root / "sub").mkdir(parents=True)
        (root / "b.py").write_bytes(b"....")
        kept: list[tuple[Path, Tree]] = []
        for number, (what, which, content) in enumerate([*actions, ("snapshot", "a.py", b"")]):
            if what == "snapshot":
                earlier = kept[-1][0] if kept else None
                code = Path(name) / f"{number}" / "code"
                code.parent.mkdir()
                take_snapshot(Project(root, git=False), code, earlier)
                kept.append((code, tree(root)))
            elif what == "forget" and kept:
                shutil.rmtree(kept.pop(0)[0])
            else:
                act(root, what, root / which, content)
        for code, was in kept:
            assert tree(code) == was


def act(root: Path, what: str, path: Path, content: bytes) -> None:
    next_tick(root)
    if what == "replace" or not path.exists():
        draft = root / "draft"
        draft.write_bytes(content)
        draft.replace(path)
    elif what == "change":
        change(path, content)
    elif what == "remove":
        path.unlink()
    elif what == "run":
        path.chmod(path.stat().st_mode ^ 0o111)
    elif what == "swap" and (root / "b.py").exists():
        (root / "b.py").rename(root / "draft")
        if path != root / "b.py":
            path.rename(root / "b.py")
        (root / "draft").rename(path)


@pytest.mark.parametrize("local_s", [1e9, -1.0], ids=["one thread", "many"])
def test_all_files_are_copied_by_one_thread_or_many(
    monkeypatch: pytest.MonkeyPatch, local_s: float
) -> None:
    monkeypatch.setattr(shared_copies, "_LOCAL_S", local_s)
    threads: set[str] = set()

    def act(name: str) -> str:
        threads.add(threading.current_thread().name)
        return name

    names = [str(n) for n in range(100)]
    assert sorted(run_in_parallel(act, names)) == sorted(names)
    assert any(name.startswith("copying") for name in threads) == (local_s < 0)
    assert run_in_parallel(act, []) == []
