"""How many files a process may have open."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from hpckit.system import open_files
from hpckit.system.open_files import OpenFilesError, allow_open_files, soft_limit

LIMITED = """
import os, resource, sys; from pathlib import Path
from hpckit.system.child_processes import spawn_piped
from hpckit.system.open_files import allow_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
allow_open_files(100, "the test")
allow_open_files(200, "the test")
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(150)]
shown = "import os, resource; print(resource.getrlimit(7)[0], len(os.listdir('/proc/self/fd')))"
child = spawn_piped([sys.executable, "-c", shown], os.environ, Path(os.devnull))
print(child.communicate()[0].decode(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
MANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "limit"),
    [
        *((1024, 4096, 3000), (3000, 4096, 3000), (3001, 4096, 3001), (1024, 3000, 3000)),
        *((1024, 2999, None), (1024, MANY, 3000), (MANY, MANY, MANY)),
    ],
)
def test_the_limit_is_raised_only_as_far_as_needed(soft: int, hard: int, limit: int | None) -> None:
    assert soft_limit(soft, hard, 3000) == limit


def test_a_limit_that_is_too_low_is_named() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard != MANY
    with pytest.raises(
        OpenFilesError, match=rf"the test needs \d+ open files, .* have {hard} here"
    ):
        allow_open_files(hard + 1, "the test")


def test_more_files_can_be_open_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: (64, 4096)}
    monkeypatch.setattr(open_files, "_raised_from", [])
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    allow_open_files(100, "the test")
    assert limits == {resource.RLIMIT_NOFILE: (100, 4096)}


def test_children_have_the_limit_that_was_before() -> None:
    """And none of the files of their parent, of which there are more than their limit."""
    words = subprocess.check_output([sys.executable, "-c", LIMITED], text=True).split()
    assert words == ["64", "4", "200"]
