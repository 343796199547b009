"""Which tests a change needs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.changed import ALWAYS, changed_files, needed_tests


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["README.md", "conf/config.yaml"], []),
        (["checkpointing/store/catalog.py"], ["tests/unit/checkpointing/store"]),
        (["checkpointing/service/config.py"], ["tests/unit/checkpointing/service"]),
        (["data/read/loader.py", "data/read/batch.py"], ["tests/unit/data/read"]),
        (["hpckit/trainer/optim/muon.py"], ["tests/unit/hpckit/trainer/optim"]),
        (["hpckit/trainer/trackers/mlflow.py"], ["tests/unit/hpckit/trainer/trackers"]),
        (["checkpointing/retention.py"], ["tests/unit/checkpointing"]),
        (
            ["checkpointing/retention.py", "checkpointing/store/catalog.py", "hpckit/ipc/x.py"],
            ["tests/unit/checkpointing", "tests/unit/hpckit/ipc"],
        ),
        (["tests/unit/data/tars.py"], ["tests/unit/data"]),
        ([f"{ALWAYS}/test_changed.py"], []),
        (["tests/integration/conftest.py", "tests/unit/data/gone.py", "launch.py"], []),
    ],
)
def test_a_changed_file_needs_the_tests_of_its_folder(
    changed: list[str], expected: list[str]
) -> None:
    assert needed_tests(changed) == sorted([ALWAYS, *expected])


def test_a_file_of_an_inner_folder_needs_the_tests_of_several_folders_too() -> None:
    found = needed_tests(["checkpointing/store/write/packer.py"])
    assert "tests/unit/checkpointing/store/write" in found
    assert "tests/unit/checkpointing/store/test_round_trip.py" in found
    assert not [test for test in found if test.endswith("/test_catalog.py")]


def test_changes_are_what_differs_from_a_commit_and_what_is_new(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("1")
        git("add", name)
        git("commit", "-m", name)
    assert changed_files("HEAD", tmp_path) == []
    assert changed_files("HEAD~1", tmp_path) == ["b.py"]
    (tmp_path / "a.py").write_text("2")
    (tmp_path / "c.py").touch()
    assert changed_files("HEAD", tmp_path) == ["a.py", "c.py"]
