"""Bad input: one clear line each, exit status 2, and nothing started. The answers themselves are in
test_usage_errors."""

from __future__ import annotations

import io
import signal
import subprocess
from contextlib import chdir, redirect_stderr
from pathlib import Path

import pytest

from hpckit.submit.launch_command import main
from tests.integration.run.runs import ALONE, PACED, REPO, command, complete, started


def refused(root: Path, shards: Path, *overrides: str, cwd: Path = REPO) -> list[str]:
    """The lines with which a start is refused in this process; asserts that nothing was started."""
    _, _, *words = command(root, shards, *overrides)
    said = io.StringIO()
    with chdir(cwd), redirect_stderr(said):
        status = main(words)
    return lines_of(root, status, said.getvalue())


def lines_of(root: Path, status: int, said: str) -> list[str]:
    assert status == 2, said
    assert not list(root.glob("*/submissions/*"))
    lines = said.splitlines()
    assert lines
    assert all(line.startswith("error: ") for line in lines), said
    return lines


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("launch.ndoes=2", "launch.ndoes: unknown key; did you mean launch.nodes?"),
        ("cluster.device=cuda launch.nodes=99 train.global_batch=99", "cuda needs a GPU"),
        ("--dry-rnu", "--dry-rnu: unknown option"),
    ],
)
def test_bad_input(tmp_path: Path, shards: Path, override: str, says: str) -> None:
    (line,) = refused(tmp_path, shards, *override.split())
    assert says in line


def test_all_violations_together(tmp_path: Path, shards: Path) -> None:
    bad = ("launch.nodes=0", "trian.steps=3", "optim.lr=fast", "precision=fp3", "model.heads=0")
    done = subprocess.run(
        command(tmp_path, shards, *bad), cwd=REPO, capture_output=True, text=True, check=False
    )
    lines = lines_of(tmp_path, done.returncode, done.stderr)
    for key in ("launch.nodes", "trian", "optim.lr", "precision", "model.heads"):
        assert any(line.startswith(f"error: {key}: ") for line in lines), (key, lines)


def test_a_shard_that_is_cut_short(tmp_path: Path, shards: Path) -> None:
    folder = tmp_path / "cut"
    folder.mkdir()
    whole = (shards / "shard-000000.tar").read_bytes()
    (folder / "shard-000000.tar").write_bytes(whole[: len(whole) // 2])
    (line,) = refused(tmp_path, shards, f"data.shards={folder}")
    assert "shard-000000.tar" in line


@pytest.mark.parametrize("root", ["/proc/hpckit", "{tmp}/file"])
def test_a_run_directory_that_cannot_be_made(tmp_path: Path, shards: Path, root: str) -> None:
    (tmp_path / "file").write_text("in the way")
    place = root.format(tmp=tmp_path)
    (line,) = refused(tmp_path, shards, f"root={place}")
    assert place in line


def test_a_package_that_hides_hpckits(tmp_path: Path, shards: Path) -> None:
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "data" / "__init__.py").touch()
    (line,) = refused(tmp_path, shards, cwd=project)
    assert str(project / "data" / "__init__.py") in line
    assert "rename it" in line


def test_a_second_start_is_refused_and_names_the_first(tmp_path: Path, shards: Path) -> None:
    words = command(tmp_path, shards, *ALONE, PACED, "train.steps=100000")
    with started(tmp_path, words) as first:
        pid = first.wait_for("run_started")["pid"]
        second = subprocess.run(words, capture_output=True, text=True, check=False, cwd=REPO)
        assert second.returncode == 2, second.stdout
        assert f"process {pid}" in second.stderr
        assert "in use" in second.stderr
        assert first.run.submission_numbers() == [1]
        first.process.send_signal(signal.SIGINT)
        status, output = first.finish()
    assert status == 130, output


def test_dry_run_writes_nothing(tmp_path: Path, shards: Path) -> None:
    before = sorted(shards.iterdir())
    root = tmp_path / "runs"
    words = command(tmp_path, shards, f"root={root}", "--dry-run")
    status, output = complete(tmp_path, words)
    assert status == 0, output
    assert "hpckit.trainer.torchrun.forked_workers --nnodes=2" in output
    assert not root.exists()
    assert sorted(shards.iterdir()) == before
