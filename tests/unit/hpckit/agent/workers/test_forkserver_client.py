"""The server that begins torchruns by forks: a real one; its torchruns are asked for help."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hpckit.agent.workers.forkserver_client import ForkedTorchrun, ForkServerClient, start_server
from hpckit.agent.workers.torchrun_command import torchrun_variables
from hpckit.system.child_processes import Child, kill_all
from tests.startup.fork_request import ADDRESS
from tests.stopped_processes import stop
from tests.unit.hpckit.specs_and_processes import until

PATIENCE_S = 120
FOREVER = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1"]
"""A torchrun that meets nobody: it tries for a minute."""


class Served:
    """A server, and one agent's connection to it."""

    def __init__(self) -> None:
        self.control, self._servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.start()
        self.connect()

    def start(self, **variables: str) -> None:
        env = os.environ | {ADDRESS: "0"} | variables  # with imports of its own
        self.process = start_server(env, self._servers, (signal.SIGTERM,), threads=1, at_once=True)

    def connect(self) -> None:
        self.agent = ForkServerClient(self.control, (signal.SIGTERM,))
        self.begin = self.agent.begin

    def end(self) -> None:
        self.agent.end()
        kill_all([self.process])
        self.control.close()
        self._servers.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    it = Served()
    yield it
    it.end()


@pytest.fixture
def server(shared: Served) -> Served:
    """One that runs; each costs the import of torch."""
    if shared.process.poll() is not None:
        shared.agent.end()
        shared.start()
        shared.connect()
    return shared


@pytest.fixture
def output(tmp_path: Path) -> Path:
    path = tmp_path / "torchrun.log"
    path.write_text("before\n")
    return path


def environment(threads: int = 1) -> dict[str, str]:
    return os.environ | torchrun_variables(threads) | {"COLUMNS": "100"}


def helps(torchrun: Child, output: Path) -> bool:
    return torchrun.wait() == 0 and output.read_text().startswith("before\nusage: ")


def forks_of(server: Served) -> list[psutil.Process]:
    found = psutil.Process(server.process.pid).children()
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def begun(server: Served) -> psutil.Process:
    """The one that is there soon, in a session of its own."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := forks_of(server)) or os.getsid(found[0].pid) != found[0].pid:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found[0]


def test_it_is_killed_before_it_has_begun(server: Served, output: Path) -> None:
    torchrun = server.begin(["--help"], environment(), output)  # imports are under way
    kill_all([torchrun])
    assert torchrun.poll() == -signal.SIGKILL
    assert helps(server.begin(["--help"], environment(), output), output), "with the same server"
    assert output.read_text().count("usage: ") == 1


@pytest.mark.parametrize("threads", [1, 3], ids=["as expected", "other threads"])
def test_all_are_forks_of_one_server(server: Served, output: Path, threads: int) -> None:
    torchrun = server.begin(["--help"], environment(threads), output)
    assert isinstance(torchrun, ForkedTorchrun)
    assert helps(torchrun, output)
    assert not forks_of(server)


def test_how_one_ends_is_told(server: Served, output: Path) -> None:
    torchrun = server.begin(["--no-such"], environment(), output)
    assert torchrun.wait() == 2
    assert torchrun.poll() == 2
    assert "torchrun" not in output.read_text()
    torchrun.kill()  # which is nothing to anybody any more


def test_one_is_killed_and_the_next_begins(server: Served, output: Path) -> None:
    torchrun = server.begin([*FOREVER, "x.py"], environment(), output)
    process = begun(server)
    assert server.agent.awaited() == [server.agent.channel.fileno()]
    assert os.getpgid(process.pid) == process.pid
    assert torchrun.poll() is None
    kill_all([torchrun])
    assert torchrun.poll() == -signal.SIGKILL
    until(lambda: not forks_of(server))
    assert helps(server.begin(["--help"], environment(), output), output)


def test_it_ends_with_the_agent_that_ordered_it_and_the_next_agent_is_served(
    server: Served, output: Path
) -> None:
    torchrun = server.begin([*FOREVER, "x.py"], environment(), output)
    process = begun(server)
    assert torchrun.poll() is None
    server.agent.end()  # as the kernel does for one that was killed
    assert process.wait(PATIENCE_S) is None
    server.connect()
    output.write_text("before\n")
    torchrun = server.begin(["--help"], environment(), output)
    assert isinstance(torchrun, ForkedTorchrun)
    assert helps(torchrun, output)


def test_a_server_that_does_not_answer_goes_with_its_torchrun(
    server: Served, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchrun = server.begin([*FOREVER, "x.py"], environment(), output)
    process = begun(server)
    assert torchrun.poll() is None
    stop(server.process.pid)
    monkeypatch.setattr("hpckit.agent.workers.forkserver_client.ANSWER_S", 0.2)
    kill_all([torchrun])
    assert torchrun.poll() == -signal.SIGKILL
    process.wait(PATIENCE_S)
    assert server.process.wait() == -signal.SIGKILL


def test_where_it_is_gone_one_is_started_without_until_there_is_another(
    server: Served, output: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torchrun = server.begin([*FOREVER, "x.py"], environment(), output)
    process = begun(server)
    until(lambda: process.name() == "torchrun")
    assert psutil.Process(server.process.pid).name() == "fork server"
    server.process.send_signal(signal.SIGTERM)  # Slurm may send it to all of a step
    assert torchrun.poll() is None
    kill_all([server.process])
    assert torchrun.wait() == -signal.SIGKILL
    assert process.wait(PATIENCE_S) is None, "it ends with its server"
    output.write_text("before\n")
    with caplog.at_level(logging.WARNING):
        plain = server.begin(["--help"], environment(), output)
    assert "the fork server has ended" in caplog.text
    assert not isinstance(plain, ForkedTorchrun)
    kill_all([plain])
    server.start(**{ADDRESS: os.environ[ADDRESS]})  # which need not import anything
    output.write_text("before\n")
    torchrun = server.begin(["--help"], environment(), output)
    assert isinstance(torchrun, ForkedTorchrun)
    assert helps(torchrun, output)


def test_where_there_can_be_none_torchruns_are_started_without(output: Path) -> None:
    control, servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with control:
        agent = ForkServerClient(control, ())
        servers.close()  # as the watchdog does when it gives up
        torchrun = agent.begin(["--help"], environment(), output)
        assert agent.awaited() == [], "a wait for its answers would be a busy one"
        assert helps(torchrun, output)
        agent.end()


FIRST = """
import os, signal, socket, sys
from pathlib import Path
from hpckit.agent import watchdog
from hpckit.agent.workers.forkserver_client import ForkServerClient, fork_first_server
from hpckit.agent.workers.torchrun_command import torchrun_variables
from hpckit.system.forked_program import ForkedProgram
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server = fork_first_server(os.environ, theirs, (signal.SIGTERM,), 1, ours.close)
assert isinstance(server, ForkedProgram)
theirs.close()
client = ForkServerClient(ours, (signal.SIGTERM,))
for words in (["--no-such"], ["--help"]):
    torchrun = client.begin(words, os.environ | torchrun_variables(1), Path(sys.argv[1]))
    print(torchrun.wait())
client.end()
ours.close()
print(server.wait())
"""


def test_the_first_server_of_a_node_is_a_fork_of_its_watchdog(output: Path) -> None:
    env = environment() | {ADDRESS: "0"}  # with imports of its own, which are tested
    done = subprocess.run(
        [sys.executable, "-c", FIRST, str(output)], env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split()) == (0, ["2", "0", "0"]), done.stderr
    assert output.read_text().startswith("before\nusage: ")
    assert "Traceback" not in output.read_text()
