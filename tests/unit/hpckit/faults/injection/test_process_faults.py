from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from hpckit.faults.injection import process_faults as striking
from hpckit.faults.injection.failing_syscalls import CANNOT
from hpckit.faults.injection.process_faults import (
    ProcessFault,
    Slowdown,
    inject_fault,
    main,
    victims,
)
from tests.unit.hpckit.specs_and_processes import is_gone, line_of, python, until

TRACES = pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
SLEEP = """
import sys, time
from hpckit.system.child_processes import name_process
name_process(sys.argv[1])
print('up', flush=True)
time.sleep(600)
"""

WRITES = """
import os, sys
for _ in sys.stdin:
    try:
        file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
        os.writev(file, [b"some"])
        os.fsync(file)
        os.close(file)
        print("done", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[dict[str, int]]:
    """An agent and a worker of node 1, its service, and a worker of another run."""
    run = {"HPCKIT_RUN": str(tmp_path), "HPCKIT_NODE": "1"}
    worker = "rank 3"
    wanted = {
        "agent": (run, "agent"),
        "worker": (run, worker),
        "child": (run, "loader"),
        "service": ({**run, "HPCKIT_SERVICE": "1"}, worker),
        "stranger": ({**run, "HPCKIT_RUN": "/another"}, worker),
    }
    with ExitStack() as stack:
        found = {}
        for name, (env, argument) in wanted.items():
            process = stack.enter_context(python(SLEEP, argument, env=env))
            assert line_of(process) == "up"
            found[name] = process.pid
        yield found


def test_a_fault_hits_whom_it_is_meant_for_and_nobody_else(
    tmp_path: Path, pids: dict[str, int]
) -> None:
    run = str(tmp_path)
    assert [p.pid for p in victims(run, ProcessFault.WORKER, 3)] == [pids["worker"]]
    assert victims(run, ProcessFault.WORKER, 1) == []
    assert victims(run, ProcessFault.NODE, 0) == []
    assert inject_fault(run, ProcessFault.HANG, 3) == [pids["worker"]]
    until(lambda: psutil.Process(pids["worker"]).status() == psutil.STATUS_STOPPED)
    assert main([run, "node", "1"]) == 0
    until(lambda: all(is_gone(pids[name]) for name in ("agent", "worker", "child")))
    assert not is_gone(pids["service"])
    assert not is_gone(pids["stranger"])
    assert main([run, "worker", "3"]) == 1


@pytest.mark.parametrize("percent", [5, 20, 100, 900])
def test_a_slowdown_stops_a_rank_for_its_share_of_the_time(percent: float) -> None:
    stopped_s, running_s = Slowdown(percent).pauses
    assert (stopped_s + running_s) / running_s == pytest.approx(1 + percent / 100)
    assert stopped_s >= 0.005, "long enough for a signal"


def test_a_rank_is_slowed_down_and_runs_afterwards(
    tmp_path: Path, pids: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[int]()
    send = psutil.Process.send_signal

    def note(process: psutil.Process, number: int) -> None:
        assert process.pid == pids["worker"]
        sent.append(number)
        send(process, number)

    monkeypatch.setattr(psutil.Process, "send_signal", note)
    assert main([str(tmp_path), "slow", "3", "20", "0.1"]) == 0
    assert sent[:2] == [signal.SIGSTOP, signal.SIGCONT]
    assert sent[-1] == signal.SIGCONT
    until(lambda: psutil.Process(pids["worker"]).status() != psutil.STATUS_STOPPED)


def test_a_drill_that_is_ended_leaves_no_rank_stopped(tmp_path: Path, pids: dict[str, int]) -> None:
    """As by Slurm; the rank would hang until it is killed."""
    worker = psutil.Process(pids["worker"])
    drill = [sys.executable, "-m", striking.__name__, str(tmp_path), "slow", "3", "900", "600"]
    process = subprocess.Popen(drill)
    try:
        until(lambda: worker.status() == psutil.STATUS_STOPPED)
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    until(lambda: worker.status() != psutil.STATUS_STOPPED)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whoever_ends_a_drill_in_a_job_leaves_no_rank_stopped(
    tmp_path: Path, pids: dict[str, int], number: int
) -> None:
    """`srun` passes on the end of its standard input, and no signal."""
    worker = psutil.Process(pids["worker"])
    remote = [sys.executable, "-m", striking.__name__, str(tmp_path), "slow", "3", "900", "600"]
    code = (
        "import os, signal, sys; from hpckit.faults.fault_commands import run_command;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # a background job ignores it
        f"os.environ[{striking.UNTIL_EOF!r}] = '1';"
        f"run_command({remote!r}, 'srun', longer_s=600, until_eof=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as drill:
        until(lambda: worker.status() == psutil.STATUS_STOPPED)
        (remotely,) = psutil.Process(drill.pid).children()
        drill.send_signal(number)
    until(lambda: is_gone(remotely.pid))
    until(lambda: worker.status() != psutil.STATUS_STOPPED)


@contextmanager
def writing(folder: Path) -> Iterator[Callable[[], str]]:
    """What the service of node 1 says of its next write: an errno, or "done"."""
    env = {"HPCKIT_RUN": str(folder), "HPCKIT_NODE": "1", "HPCKIT_SERVICE": "1"}
    with python(WRITES, str(folder / "written"), env=env) as service:

        def write() -> str:
            assert service.stdin is not None
            service.stdin.write("\n")
            service.stdin.flush()
            return line_of(service)

        yield write


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (ProcessFault.FULL, errno.EFBIG),
        pytest.param(ProcessFault.ENOSPC, errno.ENOSPC, marks=TRACES),
        pytest.param(ProcessFault.EIO, errno.EIO, marks=TRACES),
    ],
)
def test_a_disk_refuses_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: ProcessFault, error: int
) -> None:
    monkeypatch.setattr(striking, "FULL_S", 1.5)
    with writing(tmp_path) as write, ThreadPoolExecutor() as pool:
        assert write() == "done"
        struck = [pool.submit(inject_fault, str(tmp_path), fault, 1)]

        def is_refused() -> bool:
            was_over = struck[-1].done()
            if write() == str(error):
                return True
            if was_over:  # before anything was written: once more
                struck.append(pool.submit(inject_fault, str(tmp_path), fault, 1))
            return False

        until(is_refused)
        assert [len(each.result()) for each in struck] == [1] * len(struck)
        assert write() == "done"


@TRACES
def test_whoever_interrupts_it_leaves_a_disk_that_works(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "hpckit.faults.injection.process_faults",
        str(tmp_path),
        "eio",
        "1",
    ]
    with writing(tmp_path) as write, subprocess.Popen(words, stderr=subprocess.DEVNULL) as striker:
        until(lambda: write() == str(errno.EIO))
        striker.send_signal(signal.SIGINT)
        striker.wait()
        assert write() == "done"


def test_where_nothing_traces_processes_it_is_said_and_nothing_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "timeout").symlink_to(shutil.which("timeout") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with writing(tmp_path) as write:
        assert main([str(tmp_path), "eio", "1"]) == CANNOT
        assert "EIO requires strace: " in capsys.readouterr().err
        assert write() == "done"
    assert main([str(tmp_path), "eio", "1"]) == 1, "there is nobody any more"
