"""The server that begins torchruns by forks: a real one; its torchruns are asked for help."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hpckit.elastic.forkserver import Fork, ForkServer
from hpckit.elastic.torchrun import torchrun_variables
from hpckit.run.processes import Child, kill_all

PATIENCE_S = 120
FOREVER = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1"]
"""A torchrun that meets nobody: it tries for a minute."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    it = ForkServer(os.environ, (signal.SIGTERM,), threads=1)
    yield it
    it.end()


@pytest.fixture
def output(tmp_path: Path) -> Path:
    path = tmp_path / "torchrun.log"
    path.write_text("before\n")
    return path


def environment(threads: int = 1) -> dict[str, str]:
    return os.environ | torchrun_variables(threads) | {"COLUMNS": "100"}


def helps(torchrun: Child, output: Path) -> bool:
    return torchrun.wait() == 0 and output.read_text().startswith("before\nusage: ")


def forks_of(server: ForkServer) -> list[psutil.Process]:
    found = psutil.Process(server.pid).children()
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def begun(server: ForkServer) -> psutil.Process:
    """The one that is there soon, in a session of its own."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := forks_of(server)) or os.getsid(found[0].pid) != found[0].pid:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found[0]


@pytest.mark.parametrize("threads", [1, 3], ids=["as expected", "other threads"])
def test_all_are_forks_of_one_server(server: ForkServer, output: Path, threads: int) -> None:
    torchrun = server.begin(["--help"], environment(threads), output)
    assert isinstance(torchrun, Fork)
    assert helps(torchrun, output)
    assert not forks_of(server)


def test_how_one_ends_is_told(server: ForkServer, output: Path) -> None:
    torchrun = server.begin(["--no-such"], environment(), output)
    assert torchrun.wait() == 2
    assert torchrun.poll() == 2
    assert "torchrun" not in output.read_text()
    torchrun.kill()  # which is nothing to anybody any more


def test_one_is_killed_and_the_next_begins(server: ForkServer, output: Path) -> None:
    torchrun = server.begin([*FOREVER, "x.py"], environment(), output)
    process = begun(server)
    assert os.getpgid(process.pid) == process.pid
    assert torchrun.poll() is None
    kill_all([torchrun])
    assert torchrun.poll() == -signal.SIGKILL
    assert not forks_of(server)
    assert helps(server.begin(["--help"], environment(), output), output)


def test_it_is_killed_before_it_has_begun(output: Path) -> None:
    it = ForkServer(os.environ, (), threads=1)
    torchrun = it.begin(["--help"], environment(), output)  # imports are under way
    kill_all([torchrun])
    assert torchrun.poll() == -signal.SIGKILL
    assert output.read_text() == "before\n"
    it.end()


def test_a_server_that_does_not_answer_goes_with_its_torchrun(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpckit.elastic.forkserver.ANSWER_S", 0.2)
    it = ForkServer(os.environ, (), threads=1)
    torchrun = it.begin([*FOREVER, "x.py"], environment(), output)
    process = begun(it)
    assert torchrun.poll() is None
    os.kill(it.pid, signal.SIGSTOP)
    kill_all([torchrun])
    assert torchrun.poll() == -signal.SIGKILL
    process.wait(PATIENCE_S)
    it.end()


def test_where_it_is_gone_one_is_started_and_another_server(
    output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    it = ForkServer(os.environ, (signal.SIGTERM,), threads=1)
    first = it.pid
    torchrun = it.begin([*FOREVER, "x.py"], environment(), output)
    process = begun(it)
    os.kill(first, signal.SIGTERM)  # Slurm may send it to all of a step
    assert torchrun.poll() is None
    os.kill(first, signal.SIGKILL)
    assert torchrun.wait() == -signal.SIGKILL
    assert process.wait(PATIENCE_S) is None, "it ends with its server"
    output.write_text("before\n")
    with caplog.at_level(logging.WARNING):
        plain = it.begin(["--help"], environment(), output)
    assert "the fork server has ended (-9)" in caplog.text
    assert not isinstance(plain, Fork)
    assert helps(plain, output)
    assert it.pid != first
    it.end()
    with pytest.raises(ProcessLookupError):
        os.kill(it.pid, 0)
