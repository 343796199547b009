"""The stacks of workers, by themselves: real processes, of which some cannot answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpckit.agent.hangs import stack_dumps
from tests.stopped_processes import stop
from tests.unit.hpckit.specs_and_processes import line_of, python, until

WORKER = """
import faulthandler, signal, sys, time
from hpckit.ipc.process_environment import STACKS_SIGNAL
from hpckit.system.child_processes import name_process
name_process("rank " + sys.argv[1])
if sys.argv[2] == "answers":
    faulthandler.register(STACKS_SIGNAL, file=open(sys.argv[3], "a"))
else:
    signal.signal(STACKS_SIGNAL, signal.SIG_IGN)
def is_stuck_here():
    print("up", flush=True)
    time.sleep(600)
is_stuck_here()
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, str], int]]:
    """Starts one of this rank, which answers or not; its process."""
    monkeypatch.setattr("shutil.which", lambda tool: None)
    with ExitStack() as stack:

        def start(rank: int, how: str) -> int:
            path = tmp_path / f"rank{rank}.stacks"
            process = stack.enter_context(python(WORKER, str(rank), how, str(path)))
            assert line_of(process) == "up"
            return process.pid

        yield start


def test_one_that_is_stopped_is_not_waited_for(
    tmp_path: Path, worker: Callable[[int, str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_dumps, "PATIENCE_S", 3600.0)
    stopped, well = worker(0, "answers"), worker(1, "answers")
    stop(stopped)
    found = stack_dumps.write_stacks([stopped, well], tmp_path)
    assert found == [tmp_path / "rank0.stacks", tmp_path / "rank1.stacks"]
    assert found[0].read_text() == f"process {stopped} does not answer: it is stopped\n"
    until(lambda: "in is_stuck_here" in found[1].read_text())  # it is written line by line


def test_who_does_not_answer_is_said_to_and_keeps_nobody_from_answering(
    tmp_path: Path, worker: Callable[[int, str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_dumps, "PATIENCE_S", 3.0)
    pids = [worker(0, "does not"), worker(1, "answers"), worker(2, "does not")]
    deaf, well, other = stack_dumps.write_stacks(pids, tmp_path)
    assert deaf.read_text() == f"process {pids[0]} does not answer: it is sleeping\n"
    assert other.read_text() == f"process {pids[2]} does not answer: it is sleeping\n"
    until(lambda: "in is_stuck_here" in well.read_text())


def test_one_that_is_gone_has_left_none(tmp_path: Path, worker: Callable[[int, str], int]) -> None:
    gone = worker(0, "answers")
    os.kill(gone, signal.SIGKILL)
    os.waitpid(gone, 0)
    assert stack_dumps.write_stacks([gone], tmp_path) == []


def test_what_is_still_being_written_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1, 2, 3, 3])
    monkeypatch.setattr(stack_dumps, "_size", lambda path: next(sizes))
    monkeypatch.setattr(stack_dumps, "_POLL_S", 0.0)
    monkeypatch.setattr(stack_dumps, "PATIENCE_S", 600.0)
    stack_dumps._wait_for_rest([Path("rank0.stacks")])
    assert list(sizes) == []
