"""A module that is run as a program in a fork."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from hpckit.system.forked_program import is_forkable, is_like_new
from tests.unit.hpckit.specs_and_processes import is_gone, until

PROGRAM = """
import json, os, signal, sys
def main():
    print(json.dumps({
        "argv": sys.argv[1:], "main": sys.modules["__main__"].__spec__.name,
        "environment": dict(os.environ), "stdin": sys.stdin.read(), "session": os.getsid(0),
        "pid": os.getpid(), "ignored": signal.getsignal(signal.SIGTERM) == signal.SIG_IGN,
        "shared": "shared_by_both" in sys.modules,
    }), flush=True)
    if "wait" in sys.argv: signal.pause()
    if "fail" in sys.argv: raise ValueError("it fails")
    if "exit" in sys.argv: sys.exit(3)
    if "refuse" in sys.argv: sys.exit("not like this")
"""
PARENT = """
import os, signal, sys, types
from hpckit.system.forked_program import fork_program
sys.modules["shared_by_both"] = types.ModuleType("shared_by_both")
read, write = os.pipe(); os.write(write, b"given"); os.close(write)
kept = os.open(os.devnull, os.O_RDONLY)
it = fork_program("forked_example", sys.argv[1:], {"ONLY": "this"}, read,
                  lambda: os.close(kept), [signal.SIGTERM])
os.fstat(kept)  # open here
if "wait" in sys.argv: print(it.pid, flush=True); signal.pause()
if "kill" in sys.argv: it.kill()
print(it.wait(), it.poll(), flush=True)
it.kill()  # it is gone: another process may have its number
print("the parent goes on", flush=True)
"""


def parent(folder: Path, *words: str) -> subprocess.Popen[str]:
    (folder / "forked_example.py").write_text(PROGRAM)
    path = os.pathsep.join([str(folder), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, *words],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_is_a_program_of_its_own_with_the_imports_of_its_parent(tmp_path: Path) -> None:
    output, errors = parent(tmp_path, "one").communicate()
    assert output.splitlines() == ["0 0", "the parent goes on"], errors
    told = json.loads(errors)  # as its standard output is that of errors
    assert told["argv"] == ["one"]
    assert told["main"] == "forked_example"
    assert told["environment"] == {"ONLY": "this"}
    assert told["stdin"] == "given"
    assert told["session"] == told["pid"]
    assert told["ignored"]
    assert told["shared"]


def test_an_error_is_shown_and_is_its_status_alone(tmp_path: Path) -> None:
    output, errors = parent(tmp_path, "fail").communicate()
    assert output.splitlines() == ["1 1", "the parent goes on"]
    assert errors.rstrip().endswith("ValueError: it fails")


def test_it_exits_as_a_program_does(tmp_path: Path) -> None:
    output, errors = parent(tmp_path, "exit").communicate()
    assert output.splitlines() == ["3 3", "the parent goes on"]
    assert len(errors.splitlines()) == 1, "what it says, and no traceback"
    output, errors = parent(tmp_path, "refuse").communicate()
    assert output.splitlines() == ["1 1", "the parent goes on"]
    assert errors.splitlines()[1:] == ["not like this"]


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    process = parent(tmp_path, "wait")
    assert process.stdout is not None
    assert process.stderr is not None
    fork = int(process.stdout.readline())
    assert process.stderr.readline(), "it runs"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: is_gone(fork))


def test_a_fork_has_to_have_what_an_interpreter_reads_when_it_starts() -> None:
    own = {"PATH": "/bin", "PYTHONUNBUFFERED": "1"}
    assert is_like_new(own | {"OMP_NUM_THREADS": "4", "NCCL_DEBUG": "INFO"}, own)
    assert not is_like_new({"PATH": "/bin"}, own), "its output would be buffered"
    assert not is_like_new(own | {"LD_PRELOAD": "libjemalloc.so"}, own)
    assert not is_like_new(own | {"PYTHONPATH": "/code"}, own)
    assert not is_like_new(own | {"HOME": "/scratch"}, own), "the user's packages are elsewhere"


def test_a_process_with_threads_is_not_forked() -> None:
    """Locks that they hold would stay locked in the fork."""
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    assert not is_forkable(os.environ)
    is_over.set()
    thread.join()
