"""What belongs in a code snapshot, and what is recognised as something else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from checkpointing import Store
from data import pack_folder
from hpckit.rundir.code_snapshot import data_files
from hpckit.rundir.code_snapshot.configured_paths import ConfiguredPaths, configured_paths
from hpckit.rundir.code_snapshot.folder_kinds import FolderKind
from hpckit.rundir.code_snapshot.project_files import ProjectFiles, list_project
from hpckit.rundir.code_snapshot.snapshot import Project, take_snapshot
from tests.unit.hpckit.rundir.test_code_snapshot import fill, git, repository
from tests.unit.hpckit.specs_and_processes import make_spec

RUN = "submissions/001/spec.yaml"


@pytest.fixture(autouse=True)
def _own_git_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "me")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "me@example.com")


def listed(root: Path, paths: ConfiguredPaths | None = None) -> ProjectFiles:
    is_git = (root / ".git").exists()
    return list_project(root, is_git, paths) if paths else list_project(root, is_git)


@pytest.fixture(params=["git", "plain"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A project of one file, with and without git."""
    place = fill(tmp_path / "p", "a.py")
    return repository(place).root if request.param == "git" else place


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        (FolderKind.RUN, (RUN, "events.jsonl", "code.py")),
        (FolderKind.RUN, ("submissions/.001.0a1b2c3d/spec.yaml", "x.py")),
        (FolderKind.SWEEP, ("sweep.json", "runs/0", "code/0")),
        (FolderKind.SUBMISSION, ("spec.yaml", "overrides.yaml", "manifest.json", "code/a.py")),
        (FolderKind.ENVIRONMENT, ("pyvenv.cfg", "lib/python3.11/x.py")),
        (FolderKind.ENVIRONMENT, ("conda-meta/history", "lib/x.py")),
        (FolderKind.CACHE, ("models--gpt2/refs/main", "version.txt")),
        (FolderKind.CHECKPOINT, ("trainer_state.json", "config.json")),
        (FolderKind.CHECKPOINT, (".metadata", "__0_0.distcp")),
        (FolderKind.OUTPUT, (".hydra/config.yaml", "train.txt")),
    ],
)
def test_a_folder_is_recognised_by_what_is_in_it(
    root: Path, kind: FolderKind, files: tuple[str, ...]
) -> None:
    fill(root, *(f"any/name/{file}" for file in files))
    found = listed(root)
    assert found.names == ["a.py"]
    assert [(one.name, one.kind) for one in found.left_out] == [("any/name/", kind)]


@pytest.mark.parametrize("name", ["wandb", "mlruns", "lightning_logs", "outputs", "multirun"])
def test_an_output_folder_is_left_out_and_a_package_of_its_name_is_not(
    root: Path, name: str
) -> None:
    fill(
        root, f"{name}/run/files/config.yaml", f"src/{name}/__init__.py", f"b/{name}/c/__init__.py"
    )
    found = listed(root)
    assert sorted(found.names) == ["a.py", f"b/{name}/c/__init__.py", f"src/{name}/__init__.py"]
    assert [one.name for one in found.left_out] == [f"{name}/"]


@pytest.mark.parametrize("name", ["data", "runs", "submissions", "checkpoints", "cache", "env"])
def test_a_package_stays_whatever_its_name(root: Path, name: str) -> None:
    fill(root, f"{name}/__init__.py", f"{name}/sub/b.py", f"{name}/submissions/result.csv")
    assert len(listed(root).names) == 4
    assert listed(root).left_out == []


@pytest.mark.parametrize(
    "name", [".hg", "__pycache__", "node_modules", "site-packages", ".mypy_cache"]
)
def test_folders_of_tools_are_left_out_without_a_word(root: Path, name: str) -> None:
    fill(root, f"lib/{name}/x.py")
    assert (listed(root).names, listed(root).left_out) == (["a.py"], [])


def test_a_store_is_recognised_and_a_file_of_its_name_is_not_enough(root: Path) -> None:
    Store.open(root / "saved", create=True).close()
    fill(root, "saved/x.py", "mine/hpckit.json")
    found = listed(root)
    assert sorted(found.names) == ["a.py", "mine/hpckit.json"]
    assert [(one.name, one.kind) for one in found.left_out] == [("saved/", FolderKind.STORE)]


def test_a_cache_is_recognised_by_its_tag(root: Path) -> None:
    tag = fill(root, "some/CACHEDIR.TAG", "some/x.py") / "some" / "CACHEDIR.TAG"
    assert len(listed(root).names) == 3
    tag.write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert listed(root).names == ["a.py"]


def test_an_earlier_snapshot_is_recognised_and_a_checkout_is_not(
    root: Path, tmp_path: Path
) -> None:
    take_snapshot(Project(fill(tmp_path / "other", "b.py"), git=False), tmp_path / "code")
    (tmp_path / "code").rename(root / "old")
    assert listed(root).names == ["a.py"]
    assert [one.kind for one in listed(root).left_out] == [FolderKind.SNAPSHOT]
    (root / "old" / "hpckit" / "__init__.py").chmod(0o644)
    assert "old/b.py" in listed(root).names


def test_shards_are_left_out_and_code_beside_them_is_not(root: Path, tmp_path: Path) -> None:
    fill(tmp_path / "texts", "1.txt", "2.txt")
    pack_folder(tmp_path / "texts", root / "shards", samples_per_shard=1)
    fill(root, "shards/prepare.py")
    found = listed(root)
    assert sorted(found.names) == ["a.py", "shards/pack.json", "shards/prepare.py"]
    names = {one.name for one in found.left_out}
    assert {f"shards/{data_files.DATASET_MANIFEST}"} < names
    assert any(name.endswith(".tar") for name in names)


def test_names_of_indexes_are_those_of_the_library() -> None:
    from data.index import manifest
    from data.index.shard import sidecar

    assert (data_files.DATASET_MANIFEST, data_files.SIDECAR) == (manifest.NAME, sidecar.SUFFIX)


def test_what_the_config_names_is_left_out(root: Path) -> None:
    fill(root, "out/x.py", "ckpts/y.py", "cache/z.py", "d/train-000.tar", "d/train-001.tar.index")
    fill(root, "d/prepare.py", "d/val.tar", "only/000.tar")
    spec = make_spec(
        {
            "root": str(root / "out"),
            "checkpoint.url": f"file://{root}/ckpts",
            "data.cache": str(root / "cache"),
            "data.shards": str(root / "d" / "train-{000..001}.tar"),
            "data.validation": str(root / "only"),
            "train.validate_every": 1,
        }
    )
    found = listed(root, configured_paths(spec, root))
    expected = ["a.py", "d/prepare.py"] + (["d/val.tar"] if (root / ".git").exists() else [])
    assert sorted(found.names) == expected
    kinds = {one.name: one.kind for one in found.left_out if not one.name.startswith("d/val")}
    assert kinds == {
        "out/": "run directories",
        "ckpts/": "checkpoint store",
        "cache/": "cache of shards",
        "d/train-000.tar": "shards",
        "d/train-001.tar.index": "shards",
        "only/": "shards",
    }


def test_the_project_itself_and_what_is_elsewhere_are_no_folders_of_it(root: Path) -> None:
    spec = make_spec({"root": str(root), "checkpoint.url": "s3://bucket/x", "data.shards": "/x/y"})
    assert configured_paths(spec, root) == ConfiguredPaths({})


def test_nothing_that_is_left_out_is_entered(root: Path) -> None:
    """Not even by git, which would list all of it."""
    closed = fill(root, f"runs/r/{RUN}", "env/pyvenv.cfg", "env/lib/x.py")
    for folder in ("runs/r/submissions/001", "env/lib"):
        (closed / folder / "loop").symlink_to(".")
    found = listed(root)
    assert found.names == ["a.py"]
    assert {one.name for one in found.left_out} == {"runs/r/", "env/"}


def test_git_decides_what_is_ignored_in_each_folder(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "a.py", "out/kept.py")
    fill(project.root, ".gitignore", "sub/.gitignore", "sub/x.log", "sub/y.tmp", "deep/sub/z.py")
    fill(project.root, "out/new.py", "tmp/1.py", "ä ö.py", "sub/keep.log")
    (project.root / ".gitignore").write_text("*.log\nout/\n/tmp\n")
    (project.root / "sub" / ".gitignore").write_text("*.tmp\n!keep.log\n")
    new = git(project.root, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    found = listed(project.root)
    assert sorted(found.untracked) == sorted(filter(None, new))
    assert set(found.names) == {*found.untracked, "a.py", "out/kept.py"}


def test_another_repository_is_named_and_a_worktree_is_one(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "a.py")
    repository(project.root / "clone", "b.py")
    git(project.root, "worktree", "add", "-q", "wt")
    found = listed(project.root)
    assert found.names == ["a.py"]
    assert {one.name: one.kind for one in found.left_out} == {
        "clone/": FolderKind.REPOSITORY,
        "wt/": FolderKind.REPOSITORY,
    }


def test_an_untracked_file_of_a_submodule_is_no_part_of_it(tmp_path: Path) -> None:
    other = repository(tmp_path / "other", "inner/b.py")
    project = repository(tmp_path / "p", "a.py")
    allow = ("-c", "protocol.file.allow=always")
    git(project.root, *allow, "submodule", "add", "-q", str(other.root), "sub")
    fill(project.root, "sub/inner/new.py", "sub/more/new.py")
    assert sorted(listed(project.root).names) == [".gitmodules", "a.py", "sub/inner/b.py"]


def test_outside_git_files_of_data_and_hidden_ones_are_no_code(tmp_path: Path) -> None:
    root = fill(tmp_path / "p", "a.py", "Makefile", "lib/x.cu", "vocab.bpe", ".env", ".x/y.py")
    fill(root, "img/1.png", "img/2.png", "w.pt")
    found = listed(root)
    assert sorted(found.names) == ["Makefile", "a.py", "lib/x.cu", "vocab.bpe"]
    assert {one.name for one in found.left_out} == {"img/1.png", "img/2.png", "w.pt"}


def test_git_that_cannot_tell_what_it_ignores_is_an_error(tmp_path: Path) -> None:
    project = repository(tmp_path / "p", "a.py")
    fill(project.root, "new.py")
    subprocess.run(["git", "-C", str(project.root), "config", "core.bare", "x"], check=True)
    with pytest.raises(OSError, match="check-ignore"):
        list_project(project.root, is_git=True)
