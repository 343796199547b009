from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.report.log_files import (
    LogSelection,
    describe_logs,
    find_log,
    follow,
    last_lines,
    lines_for_screen,
)
from hpckit.rundir.directory import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Two generations; the second has one node."""
    found = RunDir(tmp_path)
    for generation, node, rank in ((1, 0, 0), (1, 1, 1), (2, 0, 0)):
        log = found.rank_log(generation, node, rank)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"{generation} {node} {rank}\n")
        (log.parent / "torchrun.log").touch()
    (found.logs / "supervisor.log").touch()
    found.agent_log(1).touch()
    return found


def test_which_log_is_meant(run: RunDir) -> None:
    assert find_log(run, LogSelection()) == run.logs / "supervisor.log"
    assert find_log(run, LogSelection(rank=0)) == run.rank_log(2, 0, 0)
    assert find_log(run, LogSelection(rank=1)) == run.rank_log(1, 1, 1), "the newest that has it"
    assert find_log(run, LogSelection(rank=1, generation=2)) is None
    assert find_log(run, LogSelection(generation=1)) == run.rank_log(1, 0, 0)
    assert find_log(run, LogSelection(rank=1, node=0)) is None
    assert find_log(run, LogSelection(node=1)) == run.agent_log(1)
    assert find_log(run, LogSelection(node=1, generation=1)) == run.node_logs(1, 1) / "torchrun.log"
    assert "generations 1 to 2; the newest has nodes 0 and ranks 0" in describe_logs(run)


def test_last_lines_of_a_file_of_any_length(tmp_path: Path) -> None:
    log = tmp_path / "log"
    every = [f"line {n} " + "x" * (n % 300) for n in range(3000)]
    log.write_text("\n".join(every) + "\nnot yet who")
    end = log.stat().st_size - len("not yet who")
    for most in (1, 100, 2999, 5000):
        assert last_lines(log, most) == (every[-most:], end)
    assert last_lines(log, 0) == (every, end)
    log.write_text("")
    assert last_lines(log, 10) == ([], 0)


def test_a_screen_reads_only_the_end_of_a_log_without_line_breaks(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("first\n" + "\r10%" * 100_000 + "\nlast\n")
    with open(log, "rb") as file:
        assert lines_for_screen(file, 2) == ["\r10%" * 100_000, "last"]
        assert lines_for_screen(file, 9)[0] == "first"
    with open(log, "ab") as file:
        file.truncate(1 << 32)
    with open(log, "rb") as file:
        assert lines_for_screen(file, 9) == []
        assert file.tell() <= 1 << 32


def test_following_goes_over_to_the_next_generation_and_ends_with_the_run(run: RunDir) -> None:
    said: list[str] = []
    is_over = False
    first = run.rank_log(1, 1, 1)
    lines = follow(lambda: find_log(run, LogSelection(rank=1)), first, 0, lambda: is_over)
    for added in lines:
        if added is not None:
            said.append(str(added.begins) if added.begins else added.line)
        elif len(said) == 1:
            with first.open("a") as file:
                file.write("last of one\nhalf")
            second = run.rank_log(2, 1, 1)
            second.parent.mkdir()
            second.write_text("first of two\n")
        else:
            is_over = True
    assert said == ["1 1 1", "last of one", str(run.rank_log(2, 1, 1)), "first of two"]
