"""The limit of open files is raised for connections to many ranks, or it is said which it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import resource
from checkpointing.ranks.open_files import allow_connections
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
allow_connections(2, {ranks})
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def limit_after(hard: int, ranks: int) -> subprocess.CompletedProcess[str]:
    program = _PROGRAM.format(hard=hard, ranks=ranks)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("ranks", [8, 1500])
def test_it_is_raised_as_far_as_needed(ranks: int) -> None:
    done = limit_after(4096, ranks)
    assert done.returncode == 0, done.stderr
    assert 2 * ranks < int(done.stdout) <= min(4096, 2 * (2 * ranks + 400))


def test_a_hard_limit_that_is_too_low_is_named() -> None:
    done = limit_after(1024, 16_384)
    assert done.returncode == 1
    assert "each of 16,384 ranks needs up to 33,0" in done.stderr
    assert "and may have 1,024: raise the hard limit of open files" in done.stderr
