"""A torchrun that stands by: real ones, that are asked for their help."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpckit.elastic import standby as module
from hpckit.elastic.standby import Standby
from hpckit.elastic.torchrun import torchrun_variables
from hpckit.run.processes import Process

PATIENCE_S = 120


@pytest.fixture
def standby() -> Iterator[Standby]:
    it = Standby(os.environ, (signal.SIGTERM,), threads=1, again=True)
    it.look()
    yield it
    it.end()


def environment(threads: int = 1) -> dict[str, str]:
    return os.environ | torchrun_variables(threads) | {"COLUMNS": "100"}


def helps(process: Process, output: Path) -> bool:
    assert process.wait(PATIENCE_S) == 0
    return output.read_text().startswith("before\nusage: ")


@pytest.mark.parametrize("threads", [1, 3], ids=["as expected", "other threads"])
def test_it_becomes_what_it_is_told(standby: Standby, tmp_path: Path, threads: int) -> None:
    output = tmp_path / "torchrun.log"
    output.write_text("before\n")
    (pid,) = standby.pids
    process = standby.become(["--help"], environment(threads), output)
    assert process.pid == pid
    assert helps(process, output)


def test_where_none_is_left_one_is_started(
    standby: Standby, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "torchrun.log"
    output.write_text("before\n")
    (pid,) = standby.pids
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with caplog.at_level(logging.WARNING):
        process = standby.become(["--help"], environment(), output)
    assert process.pid != pid
    assert helps(process, output)
    assert "the torchrun that stood by has ended (-9)" in caplog.text


def test_the_next_comes_when_a_generation_has_begun(
    standby: Standby, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = standby.become(["--help"], environment(), tmp_path / "torchrun.log")
    standby.look()
    assert not standby.pids
    monkeypatch.setattr(module, "BEGUN_S", 0.0)
    standby.look()
    standby.look()
    (pid,) = standby.pids
    assert process.wait(PATIENCE_S) == 0
    output = tmp_path / "next.log"
    output.write_text("before\n")
    next_one = standby.become(["--help"], environment(), output)  # in the middle of its imports
    assert next_one.pid == pid
    assert helps(next_one, output)


def test_there_is_one_only_where_the_loss_of_a_node_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Standby(os.environ, (), threads=1, again=False)
    it.look()
    assert len(it.pids) == 1
    assert it.become(["--help"], environment(), tmp_path / "log").wait(PATIENCE_S) == 0
    monkeypatch.setattr(module, "BEGUN_S", 0.0)
    it.look()
    assert not it.pids


def test_it_is_not_left_behind(standby: Standby) -> None:
    (pid,) = standby.pids
    os.kill(pid, signal.SIGTERM)  # Slurm may send it to all of a step
    standby.end()
    assert not standby.pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
