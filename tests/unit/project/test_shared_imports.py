"""Fork servers of the suite that share imports are fork servers in all that counts."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpckit.agent.workers import forkserver_client
from hpckit.agent.workers.forkserver_client import ForkedTorchrun, ForkServerClient, start_server
from hpckit.agent.workers.torchrun_command import SERVER, torchrun_variables
from hpckit.system.child_processes import kill_all, strays
from tests.startup import shared_imports
from tests.startup.shared_imports import ADDRESS, CHECKOUT
from tests.unit.hpckit.specs_and_processes import until

FOREVER = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:1", "x.py"]
"""A torchrun that meets nobody: it tries for a minute."""


class Server:
    """A fork server in the environment of a run, and an agent's connection to it."""

    def __init__(self, run: Path, **variables: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.env = os.environ | {"PYTHONSAFEPATH": "1", "HPCKIT_RUN": str(run)} | variables
        self.process = start_server(self.env, theirs, (signal.SIGTERM,), threads=1, at_once=True)
        theirs.close()
        self.agent = ForkServerClient(self._control, (signal.SIGTERM,))

    def begin(self, arguments: list[str], output: Path) -> ForkedTorchrun:
        env = self.env | torchrun_variables(1)
        torchrun = self.agent.begin(arguments, env, output)
        assert isinstance(torchrun, ForkedTorchrun)
        return torchrun

    def disconnect(self) -> None:
        self.agent.end()
        self._control.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    it = Server(tmp_path)
    yield it
    kill_all([it.process])


def test_it_serves_and_ends_as_its_fork_does(server: Server, tmp_path: Path) -> None:
    output = tmp_path / "log"
    torchrun = server.begin(["--help"], output)
    assert torchrun.wait() == 0
    assert output.read_text().startswith("usage: ")
    is_shared = torchrun._server_pid != server.process.pid
    assert is_shared == (os.environ[ADDRESS] != "0")
    server.disconnect()
    assert server.process.wait() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces; run the tests as root")
def test_it_serves_in_namespaces_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the fork server is the first process."""
    kinds = ("--mount", "--uts", "--ipc", "--net", "--pid", "--mount-proc")
    inside = ("unshare", *kinds, "--fork", "--kill-child", *SERVER)
    monkeypatch.setattr(forkserver_client, "SERVER", inside)
    server = Server(tmp_path)
    try:
        torchrun = server.begin(["--help"], tmp_path / "log")
        assert torchrun.wait() == 0
        assert (torchrun._server_pid != 1) == (os.environ[ADDRESS] != "0")
        server.disconnect()
        assert server.process.wait() == 0
    finally:
        kill_all([server.process])


def test_nothing_of_one_that_is_killed_is_left(server: Server, tmp_path: Path) -> None:
    server.begin(FOREVER, tmp_path / "log")
    spared = [server.process.pid]
    until(lambda: len(strays(tmp_path, spared=spared)) == 1)
    (torchrun,) = strays(tmp_path, spared=spared)
    fork = torchrun.parent()
    kill_all([server.process])
    until(lambda: not torchrun.is_running() and (fork is None or not fork.is_running()))


def test_a_fork_server_of_another_environment_or_code_gets_no_fork(tmp_path: Path) -> None:
    likeness, modules = shared_imports._likeness(), shared_imports._modules(CHECKOUT)
    order = {"likeness": likeness, "search_path": [str(tmp_path), str(CHECKOUT)]}

    def differences(**others: object) -> list[str]:
        content = order | {"likeness": likeness | others}
        return shared_imports._differences(content, likeness, modules)

    assert differences() == []
    assert differences(variables={"TORCH_LOGS": "+all"}) == ["variables"]
    own = {**likeness["namespaces"], "user": "user:[1]"}
    assert differences(namespaces=own, cgroups={"memory": "/nowhere"}) == ["namespaces", "cgroups"]
    (tmp_path / "hpckit").mkdir()
    (tmp_path / "hpckit/__init__.py").touch()
    assert differences() == ["code"]
