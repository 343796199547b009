"""What the end of a process that others wait for does, and what it leaves out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpckit.system.process_end import UNWRITTEN

ENDING = """
import atexit, sys, threading
from hpckit.system.process_end import end_process
atexit.register(print, "registered")
threading.Thread(target=threading.Event().wait).start()
print("unflushed, ", end="")
end_process(int(sys.argv[1]))
"""


def test_output_and_registered_functions_are_kept_and_no_thread_is_waited_for() -> None:
    command = [sys.executable, "-c", ENDING, "75"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (75, "unflushed, registered\n", "")


@pytest.mark.parametrize(("status", "ends_with"), [(0, UNWRITTEN), (75, 75)])
def test_output_that_is_lost_is_no_success(status: int, ends_with: int) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", ENDING, str(status)]
        done = subprocess.run(command, stdout=full, env=buffered, check=False, timeout=60)
    assert done.returncode == ends_with


def test_a_process_without_output_ends() -> None:
    command = ["bash", "-c", '"$@" >&- 2>&-', "bash", sys.executable, "-c", ENDING, "0"]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
