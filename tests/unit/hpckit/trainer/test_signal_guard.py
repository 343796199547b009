"""SIGTERM from torchrun, and from Slurm."""

from __future__ import annotations

import signal
import time

from tests.unit.hpckit.specs_and_processes import line_of, python, until

WORKER = """
import sys, threading, time
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.trainer import signal_guard
asked = [WorkerRequest.NONE]
signal_guard.PATIENCE_S = float(sys.argv[1])
signal_guard.install_signal_guard(lambda: asked[0])
print("up", flush=True)
for line in sys.stdin:
    asked[0] = WorkerRequest.PREEMPT
    print("asked", flush=True)
"""
STUCK = """
import threading
lock = threading.Lock(); lock.acquire(); print("stuck", flush=True); lock.acquire()
"""
FORKED = """
import os, time
pid = os.fork()
if pid == 0:
    time.sleep(60)
    os._exit(0)
os.kill(pid, 15)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
time.sleep(1)
"""

HANDLED = """
import select, signal
signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
print("own", flush=True)
while not select.select([sys.stdin], [], [], 0.1)[0]:
    pass  # a longer wait may begin between a signal and its handler
"""
WITH_LOOP = """
import asyncio, signal
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, print)
    print("loop", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
STARTED = """
import signal, subprocess
code = "import signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
print(subprocess.check_output([sys.executable, "-c", code], text=True).strip(), flush=True)
"""


def head(extra: str) -> str:
    return WORKER.split("for line")[0] + extra


def test_whoever_is_not_asked_to_leave_ends() -> None:
    with python(WORKER, 0.2) as worker:
        assert line_of(worker) == "up"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(180) == 128 + signal.SIGTERM


def test_whoever_is_asked_goes_on_and_may_save() -> None:
    with python(WORKER, 30) as worker:
        assert line_of(worker) == "up"
        worker.send_signal(signal.SIGTERM)
        assert worker.stdin is not None
        worker.stdin.write("leave\n")
        worker.stdin.flush()
        assert line_of(worker) == "asked"
        time.sleep(0.5)
        assert worker.poll() is None


def test_the_signal_of_a_notice_is_nothing_to_a_worker() -> None:
    with python(WORKER, 0.1) as worker:
        assert line_of(worker) == "up"
        worker.send_signal(signal.SIGUSR2)
        time.sleep(0.5)
        assert worker.poll() is None


def test_one_whose_event_loop_reads_of_signals_itself_ends_too() -> None:
    with python(head(WITH_LOOP), 0.2) as worker:
        assert [line_of(worker), line_of(worker)] == ["up", "loop"]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(180) == 128 + signal.SIGTERM


def test_one_that_waits_in_c_code_ends_too() -> None:
    with python(head(STUCK), 0.2) as worker:
        assert [line_of(worker), line_of(worker)] == ["up", "stuck"]
        worker.send_signal(signal.SIGTERM)
        until(lambda: worker.poll() is not None)
        assert worker.returncode == 128 + signal.SIGTERM


def test_a_fork_can_be_ended_as_usual_and_alone() -> None:
    with python(head(FORKED), 0.1) as worker:
        assert line_of(worker) == "up"
        assert line_of(worker) == str(-signal.SIGTERM)
        assert worker.wait(180) == 0, "it was not meant"


def test_a_program_that_it_starts_can_be_ended() -> None:
    with python(head(STARTED), 0.1) as worker:
        assert [line_of(worker), line_of(worker)] == ["up", "True"]


def test_a_handler_of_the_users_is_left_to_itself() -> None:
    with python(head(HANDLED), 0.01) as worker:
        assert [line_of(worker), line_of(worker)] == ["up", "own"]
        worker.send_signal(signal.SIGTERM)
        assert line_of(worker) == "handled"
        assert worker.stdin is not None
        worker.stdin.write("end\n")
        worker.stdin.flush()
        assert worker.wait(180) == 0
