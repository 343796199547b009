"""Runs git in the project."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path


class GitError(OSError):
    """Raised if git fails where it must not; the message has git's own."""


def git_output(cwd: Path, *arguments: str) -> str | None:
    """Returns the output of a git command, or None without git or a repository."""
    command: Sequence[str] = ("git", "-C", str(cwd), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


def tracked_names(root: Path) -> set[str]:
    """Returns the names, relative to `root`, of the files in git's index, those of submodules
    included. Some may have been deleted."""
    listed = git_output(root, "ls-files", "-z", "--cached", "--recurse-submodules") or ""
    return set(filter(None, listed.split("\0")))


def ignored_names(root: Path, names: Collection[str]) -> set[str]:
    """Returns those of `names`, relative to `root`, that git ignores.

    Raises:
        GitError: git cannot tell.
    """
    if not names:
        return set()
    command = ("git", "-C", str(root), "check-ignore", "-z", "--stdin")
    text = os.fsencode("\0".join(names) + "\0")
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    if done.returncode not in (0, 1):  # 1: it ignores none of them
        reason = os.fsdecode(done.stderr).strip() or f"exit status {done.returncode}"
        raise GitError(f"git check-ignore in {root}: {reason}")
    return set(filter(None, os.fsdecode(done.stdout).split("\0")))
