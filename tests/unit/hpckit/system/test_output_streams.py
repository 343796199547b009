"""What a program prints reaches any terminal, and an output that cannot be written is one line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from hpckit.system.output_streams import checked_output
with checked_output():
    print("3 \\u2260 4 " + "x" * int(sys.argv[1]))
    sys.exit(7)
"""
SHORT, LONG = "1", "100000"
"""Numbers of letters of which the text is written at the end of the program, and immediately."""


def printed(size: str, stdout: int, **env: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, size],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=os.environ | env,
        check=False,
    )
    return done.returncode, (done.stdout or b"").decode(), done.stderr.decode()


def test_a_terminal_that_lacks_a_character_shows_another_one() -> None:
    ascii_only = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert printed(SHORT, subprocess.PIPE, **ascii_only) == (7, "3 ? 4 x\n", "")
    assert printed(SHORT, subprocess.PIPE, PYTHONIOENCODING="utf-8") == (7, "3 ≠ 4 x\n", "")


@pytest.mark.parametrize("size", [SHORT, LONG])
def test_a_full_disk_is_one_line(size: str) -> None:
    with open("/dev/full", "wb") as full:
        status, _, said = printed(size, full.fileno())
    assert status == 2
    assert said == "error: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("size", [SHORT, LONG])
def test_a_reader_that_has_ended_is_no_error(size: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        assert printed(size, writes) == (1, "", "")
    finally:
        os.close(writes)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_takes_what_is_printed(closed: str) -> None:
    program = PROGRAM.replace("sys.exit", "print(sys.stdout.isatty(), file=sys.stderr); sys.exit")
    command = ["bash", "-c", f'"$@" {closed}', "bash", sys.executable, "-c", program, SHORT]
    env = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, env=env, check=False)
    assert done.returncode == 7
    assert done.stdout.decode() == ("" if closed.startswith(">") else "3 ≠ 4 x\n")
    assert done.stderr.decode() == ("" if "2" in closed else "False\n")
