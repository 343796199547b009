"""The last words of what was to be an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from hpckit.supervisor.agents.agent_logs import AgentLogs


@pytest.fixture
def logs(tmp_path: Path) -> AgentLogs:
    RunDir(tmp_path).logs.mkdir()
    return AgentLogs(RunDir(tmp_path))


def test_those_of_this_agent_count_and_not_of_one_before(logs: AgentLogs) -> None:
    path = logs.start_log(1)
    assert logs.last_line(1) is None
    path.write_text("srun: error: n2: an old story\n")
    assert logs.start_log(1) == path
    assert logs.last_line(1) is None
    with path.open("ab") as file:
        file.write(b"srun: error: Unable to create step: \xff\n\n")
    assert logs.last_line(1) == "srun: error: Unable to create step: \ufffd"


def test_the_cause_is_told_and_not_that_the_task_has_ended(logs: AgentLogs) -> None:
    path = logs.start_log(0)
    end = "srun: error: n1: task 0: Exited with exit code 1\n"
    path.write_text(f"ModuleNotFoundError: No module named 'x'\n{end}")
    assert logs.last_line(0) == "ModuleNotFoundError: No module named 'x'"
    logs.start_log(0)
    with path.open("a") as file:
        file.write(end)
    assert logs.last_line(0) == end.strip()


def test_a_long_log_is_not_read_whole_nor_told_whole(logs: AgentLogs) -> None:
    logs.start_log(0).write_text("x" * 100_000)
    words = logs.last_line(0)
    assert words is not None
    assert 100 < len(words) < 1000
