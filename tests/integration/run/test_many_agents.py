"""A supervisor of many nodes, whose agents are simulated, works with few files and few requests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from benchmarks.scale.many_agents import run_directory, supervised
from hpckit.events.event_log import read_events
from hpckit.events.schema import HangExplained

NODES = 120
FEW = 150  # open files, of which it needs more: two pipes and a connection for each node


def test_orders_reach_each_of_many_agents_once_and_files_do_not_grow_with_the_time_watched(
    tmp_path: Path,
) -> None:
    run, begun_s = run_directory(tmp_path, NODES), time.monotonic()
    with supervised(run, FEW) as (process, agents, file_calls):
        agents.until(lambda: agents.met[1] == NODES)
        assert agents.received["start"] == NODES
        agents.report_hang(0)
        agents.until(lambda: agents.received["finding"] == NODES)
        assert agents.received["examine"] == NODES
        agents.lose(NODES - 1)
        agents.until(lambda: agents.met[2] == NODES)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        agents.until(lambda: agents.received["ask"] == NODES)
        agents.until(lambda: not process.is_alive())
        assert process.exitcode == 0
    assert agents.received["start"] == 2 * NODES
    seconds = time.monotonic() - begun_s
    assert file_calls.value <= NODES + 100 + 2 * seconds, "a log for each agent, and no more"
    (found,) = (e for e in read_events(run.events) if isinstance(e, HangExplained))
    assert (found.culprits, found.examined) == ([0], 8 * NODES)
