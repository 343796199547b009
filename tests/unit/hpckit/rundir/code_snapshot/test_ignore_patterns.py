"""The patterns mean what they mean to git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.rundir.code_snapshot.ignore_patterns import IgnorePatterns, read_patterns
from tests.effort import times

NAMES = ("a", "b", "a.py", "ab", "a b", "#a", "!a", "[a]")
FOLDERS = ("a", "b", "a/b", "b/a", "a/b/ab")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("", *FOLDERS):
        for name in NAMES:
            if not (root / folder / name).is_dir():
                (root / folder / name).write_text("")
    return root


def ours(root: Path, patterns: IgnorePatterns) -> set[str]:
    found = set()
    pending = [""]
    while pending:
        folder = pending.pop()
        for entry in os.scandir(root / folder):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name == ".git" or patterns.matches(name, entry.is_dir()):
                continue
            if entry.is_dir():
                pending.append(name)
            else:
                found.add(name)
    return found


WORDS = st.sampled_from(
    ["a", "b", "*", "**", "?", "/", "/", ".py", "[ab]", "[!a]", "[a-b]", "!", "#", "\\", " ", "[a"]
)
LINES = st.lists(WORDS, min_size=1, max_size=5).map("".join)
# An escaped slash is rare, and git has rules of its own for it
LINES = LINES.filter(lambda line: "\\/" not in line)


@settings(max_examples=times(30), deadline=None)
@given(st.lists(LINES, min_size=1, max_size=3))
def test_what_is_left_is_what_git_lists(tree: Path, lines: list[str]) -> None:
    (tree / ".hpckitignore").write_text("\n".join(lines) + "\n")
    command = ["git", "-C", str(tree), "ls-files", "-z", "--others"]
    command += ["--exclude-from", str(tree / ".hpckitignore")]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert ours(tree, read_patterns(tree)) == set(filter(None, listed.split("\0"))), lines


@pytest.mark.parametrize("line", ["a**/a", "a/**", "/a**", "/**/b", "a/b**/*", "a***/a", "?**/a"])
def test_two_stars_mean_what_they_mean_to_git(tree: Path, line: str) -> None:
    test_what_is_left_is_what_git_lists.hypothesis.inner_test(tree, [line])  # type: ignore[attr-defined]


def test_no_file_and_comments_ignore_nothing(tmp_path: Path) -> None:
    assert not read_patterns(tmp_path)
    (tmp_path / ".hpckitignore").write_text("# a comment\n\n   \n/\n")
    assert not read_patterns(tmp_path)
