"""What the end of a process that others wait for does, and what it leaves out."""

import gzip
import os
import subprocess
import sys
import zipfile
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

PROGRAM = """
import atexit, gc, gzip, os, tempfile, threading, time, zipfile
from hpckit.system.process_end import finish_program, leave_open_files
inherited = open("inherited", "w")
inherited.write("once")
if child := os.fork():
    os.waitpid(child, 0)
    os._exit(0)
leave_open_files()
late, binary, compressed = open("late", "w"), open("binary", "wb"), gzip.open("compressed", "wt")
archive, temporary = zipfile.ZipFile("archive", "w"), tempfile.NamedTemporaryFile(dir=".")
binary.write(b"bytes"), compressed.write("text"), archive.writestr("member", "content")
closed, full = open("closed", "w"), open("/dev/full", "w")
closed.close(), full.write("lost")
def write():
    time.sleep(0.1)
    late.write("thread, ")
threading.Thread(target=write).start()
atexit.register(late.write, "atexit")
finish_program()
os._exit(0)
"""


def test_files_that_a_program_leaves_open_are_whole(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (tmp_path / "late").read_text() == "thread, atexit"
    assert (tmp_path / "binary").read_bytes() == b"bytes"
    assert gzip.decompress((tmp_path / "compressed").read_bytes()) == b"text"
    assert zipfile.ZipFile(tmp_path / "archive").read("member") == b"content"
    assert (tmp_path / "inherited").read_text() == "", "of the process that has opened it"
    assert {path.name for path in tmp_path.iterdir()} == {
        *("late", "binary", "compressed", "archive", "inherited", "closed")
    }, "no temporary file"
    assert "what was written last to <_io.TextIOWrapper name='/dev/full'" in done.stderr
    assert "No space left on device" in done.stderr


ODD = """
import atexit, ctypes, io, os, sys
from hpckit.system.process_end import run_to_end
class Unfinished(io.RawIOBase):
    def close(self):
        raise AttributeError("has no file yet")
class Shared(io.TextIOWrapper):
    def __del__(self):
        self.detach()
class Copied(io.TextIOBase):
    def write(self, text):
        return os.write(1, text.encode())
unfinished, detached, file = Unfinished(), io.TextIOWrapper(io.BytesIO()), open("shared", "wb")
detached.detach()
shared = Shared(file)
shared.write("text")
sys.stdout = Copied()
sys.excepthook = lambda kind, error, trace: print("hook of", kind.__name__)
atexit.register(print, "registered")
c = ctypes.CDLL(None)
c.fopen.restype = ctypes.c_void_p
c.fputs(b"text", ctypes.c_void_p(c.fopen(b"of_c", b"w")))
def main():
    raise KeyError
status = run_to_end(main)
print("open", not sys.stdout.closed, not file.closed)
os._exit(status)
"""


def test_a_failed_program_ends_as_python_does_whatever_files_it_has(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ODD]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    expected = ["hook of KeyError", "registered", "open True True"]
    assert (done.returncode, done.stdout.splitlines()) == (1, expected), done.stderr
    assert "has no file yet" in done.stderr
    assert "detached" not in done.stderr
    assert [(tmp_path / name).read_text() for name in ("shared", "of_c")] == ["text", "text"]


FROZEN = """
import gc, os
from hpckit.system.process_end import finish_program, leave_open_files
leave_open_files()
file = open("frozen", "w")
file.write("text")
gc.freeze()
finish_program()
os._exit(0)
"""
WAITING = """
import threading
from hpckit.system.process_end import run_to_end
def main():
    threading.Thread(target=threading.Event().wait).start()
    raise KeyError
run_to_end(main, end_s=0.01)
"""


def test_files_that_a_program_has_frozen_are_written(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FROZEN], cwd=tmp_path, check=True)
    assert (tmp_path / "frozen").read_text() == "text"


def test_a_failed_program_does_not_wait_for_its_threads_for_ever() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "KeyError" in done.stderr


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
