from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from hpckit.elastic.strike import Fault, main, strike, victims
from tests.unit.hpckit.hpckit_parts import is_gone, line_of, python, until

SLEEP = """
import sys, time
from hpckit.run.processes import name_process
name_process(sys.argv[1])
print('up', flush=True)
time.sleep(600)
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
    assert [p.pid for p in victims(run, Fault.WORKER, 3)] == [pids["worker"]]
    assert victims(run, Fault.WORKER, 1) == []
    assert victims(run, Fault.NODE, 0) == []
    assert strike(run, Fault.HANG, 3) == [pids["worker"]]
    until(lambda: psutil.Process(pids["worker"]).status() == psutil.STATUS_STOPPED)
    assert main([run, "node", "1"]) == 0
    until(lambda: all(is_gone(pids[name]) for name in ("agent", "worker", "child")))
    assert not is_gone(pids["service"])
    assert not is_gone(pids["stranger"])
    assert main([run, "worker", "3"]) == 1
