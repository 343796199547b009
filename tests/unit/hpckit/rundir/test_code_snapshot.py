"""The code snapshot, taken of real git work trees and of plain folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpckit.rundir.code_snapshot import snapshot
from hpckit.rundir.code_snapshot.imported_files import imported_files
from hpckit.rundir.code_snapshot.snapshot import (
    PACKAGES,
    CodeSnapshotError,
    Project,
    copy_snapshot,
    find_project,
    git_diff,
    git_facts,
    hidden_packages,
    shadowed_packages,
    take_snapshot,
)


@pytest.fixture(autouse=True)
def _own_git_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "me")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "me@example.com")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return folder


def repository(folder: Path, *names: str) -> Project:
    fill(folder, *names)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first", "--allow-empty")
    return find_project(folder)


def copied(into: Path) -> set[str]:
    """Files of the snapshot `into` beside hpckit's own packages."""
    names = {str(path.relative_to(into)) for path in into.rglob("*") if not path.is_dir()}
    return {name for name in names if name.split("/")[0] not in PACKAGES}


def test_a_project_is_the_work_tree_from_anywhere_inside(tmp_path: Path) -> None:
    root = tmp_path / "project"
    assert repository(root, "sub/a.py") == Project(root, True)
    assert find_project(root / "sub") == Project(root, True)
    (tmp_path / "plain").mkdir()
    assert find_project(tmp_path / "plain") == Project(tmp_path / "plain", False)


def test_a_folder_with_configs_of_its_own_is_a_project_in_a_work_tree(tmp_path: Path) -> None:
    root = tmp_path / "many"
    repository(root, "a/conf/cluster/mine.yaml", "a/sub/x.py", "b/conf/words.yaml", "b/y.py")
    assert find_project(root / "a" / "sub") == Project(root / "a", True)
    assert find_project(root / "b") == Project(root, True), "its conf/ is something else"
    take_snapshot(find_project(root / "a"), tmp_path / "code")
    assert copied(tmp_path / "code") == {"conf/cluster/mine.yaml", "sub/x.py"}


def test_git_tracked_and_new_files_are_copied_ignored_and_deleted_ones_not(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", ".gitignore", "a.py", "gone.py", "pkg/b.bin", "ä ö.py")
    (project.root / ".gitignore").write_text("*.log\nout/\n")
    fill(project.root, "new.py", "x.log", "out/y.py")
    (project.root / "a.py").write_text("changed\n")
    (project.root / "gone.py").unlink()
    into = tmp_path / "code"
    found = take_snapshot(project, into)
    assert copied(into) == {".gitignore", "a.py", "pkg/b.bin", "new.py", "ä ö.py"}
    assert (into / "a.py").read_text() == "changed\n"
    assert found.left_out == []


def test_a_linked_file_is_copied_as_what_it_shows(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "a.py")
    (project.root / "link.py").symlink_to("a.py")
    (project.root / "broken.py").symlink_to("nowhere.py")
    take_snapshot(project, tmp_path / "code")
    assert copied(tmp_path / "code") == {"a.py", "link.py"}
    assert (tmp_path / "code" / "link.py").read_text() == "# a.py\n"


def test_a_linked_folder_of_the_project_is_copied(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "src/lib/a.py")
    (project.root / "lib").symlink_to("src/lib")
    git(project.root, "add", "-A")
    take_snapshot(project, tmp_path / "code")
    assert (tmp_path / "code" / "lib" / "a.py").read_text() == "# src/lib/a.py\n"


def test_a_submodule_is_copied(tmp_path: Path) -> None:
    other = repository(tmp_path / "other", "inner.py")
    project = repository(tmp_path / "p", "a.py")
    allow = ("-c", "protocol.file.allow=always")
    git(project.root, *allow, "submodule", "add", "-q", str(other.root), "sub")
    take_snapshot(project, tmp_path / "code")
    assert (tmp_path / "code" / "sub" / "inner.py").is_file()


def test_a_large_file_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_FILE_BYTES", 100)
    project = repository(tmp_path / "p", "a.py", "exact.py", "weights.py")
    (project.root / "exact.py").write_bytes(b"x" * 100)
    (project.root / "weights.py").write_bytes(b"x" * 101)
    found = take_snapshot(project, tmp_path / "code")
    assert found.left_out == ["weights.py"]
    assert copied(tmp_path / "code") == {"a.py", "exact.py"}


def test_outside_git_code_is_copied_and_what_is_made_is_not(tmp_path: Path) -> None:
    root = fill(
        tmp_path / "p",
        *("a.py", "conf/b.yaml", "deep/er/c.json", "run.sh"),
        *("weights.bin", ".secret/d.py", "__pycache__/e.py"),
        *("venv/pyvenv.cfg", "venv/f.py", "runs/one/submissions/001/code/g.py"),
    )
    project = find_project(root)
    assert project.git is False
    take_snapshot(project, tmp_path / "code")
    assert copied(tmp_path / "code") == {"a.py", "conf/b.yaml", "deep/er/c.json", "run.sh"}


def test_too_many_files_are_refused_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_FILES", 2)
    project = find_project(fill(tmp_path / "p", "a.py", "b.py", "c.py"))
    with pytest.raises(CodeSnapshotError, match="holds 3 files"):
        take_snapshot(project, tmp_path / "code")


def test_a_snapshot_counts_what_it_copied(tmp_path: Path) -> None:
    into = tmp_path / "code"
    found = take_snapshot(repository(tmp_path / "p", "a.py"), into)
    files = [path for path in into.rglob("*") if path.is_file()]
    assert (found.files, found.bytes) == (len(files), sum(p.stat().st_size for p in files))


def imported_from(into: Path, name: str) -> Path:
    """Where a job that runs in snapshot `into` finds package `name`."""
    code = f"import {name}; print({name}.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(into)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip()).parent


@pytest.mark.parametrize("name", PACKAGES)
def test_hpckits_own_packages_run_from_the_snapshot(tmp_path: Path, name: str) -> None:
    take_snapshot(repository(tmp_path / "p", "a.py"), tmp_path / "code")
    assert imported_from(tmp_path / "code", name) == tmp_path / "code" / name
    assert not list((tmp_path / "code").rglob("__pycache__/*.pyc.*"))


def test_hpckits_own_packages_run_from_the_snapshot_beside_a_plain_data_folder(
    tmp_path: Path,
) -> None:
    project = repository(tmp_path / "p", "a.py", "data/words.txt")
    assert shadowed_packages(project) == []
    take_snapshot(project, tmp_path / "code")
    assert (tmp_path / "code" / "data" / "words.txt").is_file()
    assert imported_from(tmp_path / "code", "data").is_relative_to(tmp_path / "code")


def test_a_package_that_would_hide_hpckits_is_named(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "data/__init__.py", "checkpointing.py")
    found = shadowed_packages(project)
    assert len(found) == 2
    assert found[0].startswith(f"{project.root}/checkpointing.py: ")
    assert found[1].startswith(f"{project.root}/data/__init__.py: ")
    assert "'data'" in found[1]


def test_a_project_with_hpckits_names_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    names = ("data/__init__.py", "data.py", "checkpointing.py", "train.py")
    project = repository(tmp_path / "p", *names)
    assert hidden_packages(project).keys() == {"checkpointing", "data"}
    code = tmp_path / "code"
    take_snapshot(project, code, is_apart=True)
    assert all((code / "project-code" / name).is_file() for name in names)
    assert imported_from(code, "data") == code / "data"
    assert not (code / "train.py").exists()
    (tmp_path / "next").mkdir()
    copy_snapshot(code, tmp_path / "next" / "code")
    assert (tmp_path / "next" / "code" / "project-code" / "train.py").is_file()


def test_hpckits_own_checkout_hides_nothing() -> None:
    root = Path(snapshot.__file__).resolve().parents[3]
    assert shadowed_packages(Project(root, True)) == []


def test_facts_name_revision_branch_and_state(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "a.py")
    revision = git(project.root, "rev-parse", "HEAD").strip()
    clean = {"revision": revision, "branch": "main", "dirty": False}
    assert git_facts(project) == clean
    assert git_diff(project) == ""
    fill(project.root, "new.py")
    assert git_facts(project) == {**clean, "dirty": True}
    assert git_facts(Project(tmp_path, False)) is None


def test_the_diff_holds_staged_and_unstaged_changes_and_names_of_new_files(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "a.py", "b.py")
    (project.root / "a.py").write_text("staged\n")
    git(project.root, "add", "a.py")
    (project.root / "b.py").write_text("not staged\n")
    fill(project.root, "new.py")
    diff = git_diff(project)
    assert "+staged" in diff
    assert "+not staged" in diff
    assert diff.endswith("# untracked: new.py\n")
    assert git_diff(Project(tmp_path, False)) == ""


def test_text_that_is_not_utf8_is_no_obstacle(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "a.txt")
    (project.root / "a.txt").write_bytes("Grüße\n".encode("latin-1"))
    assert "+Gr" in git_diff(project)


def test_a_repository_without_a_commit_is_a_project_too(tmp_path: Path) -> None:
    root = fill(tmp_path / "p", "a.py")
    git(root, "init", "-q", "-b", "main")
    project = find_project(root)
    facts = git_facts(project)
    assert facts is not None
    assert (facts["revision"], facts["dirty"]) == (None, True)
    take_snapshot(project, tmp_path / "code")
    assert copied(tmp_path / "code") == {"a.py"}


def test_what_the_entry_imports_is_copied_though_git_ignores_it(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", ".gitignore", "t.py", "pkg/__init__.py")
    (project.root / ".gitignore").write_text("/pkg/_version.py\nmade/\n*.log\n")
    (project.root / "t.py").write_text("from pkg import (  # the release\n    _version as v,\n)\n")
    (project.root / "pkg" / "__init__.py").write_text("def f():\n    import made.table\n")
    fill(project.root, "pkg/_version.py", "made/table.py", "made/notes.py", "x.log")
    take_snapshot(project, tmp_path / "code", needed=imported_files(project.root, "t"))
    assert copied(tmp_path / "code") == {
        *(".gitignore", "t.py", "pkg/__init__.py", "pkg/_version.py", "made/table.py")
    }


def test_a_large_module_is_copied_if_the_entry_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_FILE_BYTES", 100)
    project = repository(tmp_path / "p", "t.py", "big.py", "other.py")
    (project.root / "t.py").write_text("import os, big\n")
    for name in ("big.py", "other.py"):
        (project.root / name).write_bytes(b"#" * 101)
    found = take_snapshot(project, tmp_path / "code", needed=imported_files(project.root, "t"))
    assert copied(tmp_path / "code") == {"t.py", "big.py"}
    assert found.left_out == ["other.py"]
    assert found.note == "other.py (large file, 101 B)"


def test_what_is_imported_through_a_link_that_leads_outside_is_copied(tmp_path: Path) -> None:
    fill(tmp_path / "shared", "lib/a.py", "lib/b.py")
    project = repository(tmp_path / "p", "t.py")
    (project.root / "lib").symlink_to(tmp_path / "shared" / "lib")
    (project.root / "t.py").write_text("from lib import a\n")
    found = take_snapshot(project, tmp_path / "code", needed=imported_files(project.root, "t"))
    assert copied(tmp_path / "code") == {"t.py", "lib/a.py"}
    assert found.why_left_out == {"lib": "link to a folder outside of the project"}


def test_a_link_to_what_is_left_out_is_left_out(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "a.py", "src/lib/b.py")
    fill(project.root, "runs/x/submissions/001/spec.yaml")
    (project.root / "newest").symlink_to("runs/x")
    (project.root / "lib").symlink_to("src/lib")
    take_snapshot(project, tmp_path / "code")
    assert copied(tmp_path / "code") == {"a.py", "src/lib/b.py"}
    assert (tmp_path / "code" / "lib" / "b.py").is_file()
    assert not (tmp_path / "code" / "newest").is_symlink()


def test_weights_that_git_does_not_track_are_left_out(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "a.py", "kept.npy")
    for name in ("kept.npy", "new.safetensors"):
        (project.root / name).write_bytes(bytes((1 << 20) + 1))
    (project.root / "small.npy").write_bytes(bytes(1 << 20))
    found = take_snapshot(project, tmp_path / "code")
    assert copied(tmp_path / "code") == {"a.py", "kept.npy", "small.npy"}
    assert found.note == "new.safetensors (large file, 1.0 MiB)"


def test_a_project_with_too_much_in_it_names_the_largest_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_BYTES", 3000)
    project = repository(tmp_path / "p", "a.py")
    fill(project.root, *(f"many/{n}.txt" for n in range(9)))
    (project.root / "raw").mkdir()
    (project.root / "raw" / "x.csv").write_bytes(b"x" * 4000)
    with pytest.raises(CodeSnapshotError) as caught:
        take_snapshot(project, tmp_path / "code")
    text = str(caught.value)
    assert text.startswith(f"{project.root} holds 4.0 KiB in 11 files: start from ")
    assert ".hpckitignore" in text
    assert "many/ (9 files, " in text
    assert "raw/ (1 files, 3.9 KiB)" in text
    (project.root / ".hpckitignore").write_text("raw/\n")
    found = take_snapshot(project, tmp_path / "again")
    assert (found.left_out, found.note) == (["raw/"], "")


def test_snapshots_of_a_project_with_its_runs_in_it_do_not_grow(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "a.py")
    sizes = set()
    for n in range(6):
        into = fill(project.root, f"runs/r{n}/submissions/001/spec.yaml") / f"runs/r{n}"
        sizes.add(take_snapshot(project, into / "submissions" / "001" / "code").files)
    assert len(sizes) == 1
